// SPDX-License-Identifier: Apache-2.0
// Adafactor for all jobs at once: tables of work, and the launches that run over them.
//
// A tensor is planes x rows x cols (its last two dimensions, and how many such). Its shape
// alone decides how it is cut: rank < 2 into runs of elements, small planes into groups of
// whole planes that fit shared memory, others into tiles. One slice is one block's work
// and one partial sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include <cuda_runtime_api.h>

#include "backend/cuda/device/buffer.h"
#include "backend/cuda/tables/control.h"
#include "backend/cuda/tables/entries.h"
#include "backend/jobs.h"

namespace rode::cuda {

enum class AdafactorCut : std::int32_t { run, group, tile };

// Elements of a run; greatest side of a small plane, and elements of a group.
inline constexpr std::int32_t kAdafactorRun = 32768, kAdafactorSmallSide = 64;
inline constexpr std::int32_t kAdafactorGroup = kAdafactorSmallSide * kAdafactorSmallSide;
// Columns: eight a lane. Rows: 128 keep the partial column sums at 1/16 byte an element.
inline constexpr std::int32_t kAdafactorTileRows = 128, kAdafactorTileCols = 256;
// Rows or columns whose averages one block advances.
inline constexpr std::int32_t kAdafactorLines = 256;

AdafactorCut adafactor_cut(const AdafactorJob& job);
// Slices of the passes over all elements, and those over rows and columns (tiles only).
std::int64_t adafactor_slices(const AdafactorJob& job);
std::int64_t adafactor_lines(const AdafactorJob& job);

// One job as the kernels see it. The last fields say where its partial sums begin.
struct AdafactorTask {
  WeightView weight;  // this and the next: set by the kernels, from the job
  ArrayView grad;
  ArrayView exp_avg_sq;
  float *row, *col;
  const std::int64_t* step;
  rules::AdafactorConstants constants;
  std::int64_t planes, rows, cols, offset;
  AdafactorCut cut;
  std::int64_t tiles_down, tiles_across;  // of a plane
  std::int64_t row_groups;                // of kAdafactorLines rows, of a plane
  std::int64_t row_parts;                 // planes x tiles_across x rows
  std::int64_t col_parts;                 // planes x tiles_down x cols
  std::int64_t row_sums;                  // planes x row_groups
  std::int64_t first_slice, slices;
};

struct AdafactorSlice {
  std::int32_t task, index;
};

// What every launch gets, by value; all pointers are the device's.
struct AdafactorArgs {
  const AdafactorTask* tasks;
  const JobEntry* jobs;  // one per task
  const AdafactorSlice *slices, *tiles, *lines;
  std::int64_t task_count, slice_count, tile_count, line_count;
  double* line_parts;             // sums of squares of rows and columns by tile, sums of new rows
  double* squares;                // of the updates, one per slice
  double* sums;                   // ww and dd, a pair per slice
  rules::AdafactorWrite* writes;  // one per task
  Control* control;
  JobResult* results;  // one per task
};

void launch_adafactor(const AdafactorArgs& args, cudaStream_t stream);

class AdafactorSteps {
 public:
  AdafactorSteps(const std::deque<AdafactorJob>& jobs, cudaStream_t stream);

  // State and constants of the jobs, as they are now.
  void refresh(const std::deque<AdafactorJob>& jobs, cudaStream_t stream);
  // After the gate, which has advanced the counters of live jobs. `entries`, `results`: of
  // the first of these jobs. Reads nothing on the host, and launches the same in every step: it
  // may be captured.
  void enqueue(Control* control, const JobEntry* entries, JobResult* results,
               cudaStream_t stream) const;
  std::size_t workspace_bytes() const;

 private:
  std::vector<AdafactorTask> tasks_;
  TableUploads uploads_;  // of device_tasks_
  DeviceBuffer device_tasks_, slices_, tiles_, lines_;
  DeviceBuffer line_parts_, squares_, sums_, writes_;
};

}  // namespace rode::cuda
