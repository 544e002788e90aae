// SPDX-License-Identifier: Apache-2.0
// Cuts Adafactor's jobs into slices and lays out their partial sums.
#include "backend/cuda/adafactor/adafactor_steps.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "backend/cuda/device/check.h"
#include "rode/error.h"

namespace rode::cuda {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

std::int64_t element_count(const AdafactorJob& job) { return job.planes * job.rows * job.cols; }

// What may change from step to step.
void bind(AdafactorTask& task, const AdafactorJob& job) {
  task.exp_avg_sq = {job.exp_avg_sq.data, job.exp_avg_sq.dtype == DType::bf16 ? 1 : 0};
  task.row = job.row;
  task.col = job.col;
  task.step = job.step;
  task.constants = *job.constants;
}

void append(std::vector<AdafactorSlice>& table, std::size_t task, std::int64_t count) {
  constexpr std::int64_t kMost = 0x7fffffff;
  if (static_cast<std::int64_t>(table.size()) + count > kMost) {
    throw Error(ErrorKind::unsupported, "adafactor",
                fmt::format("the parameters need more than {} blocks of threads; step them by "
                            "several optimizers",
                            kMost));
  }
  for (std::int64_t i = 0; i < count; ++i) {
    table.push_back({static_cast<std::int32_t>(task), static_cast<std::int32_t>(i)});
  }
}

}  // namespace

AdafactorCut adafactor_cut(const AdafactorJob& job) {
  if (job.row == nullptr) return AdafactorCut::run;
  const bool small = std::max(job.rows, job.cols) <= kAdafactorSmallSide;
  return small ? AdafactorCut::planes : AdafactorCut::tile;
}

std::int64_t adafactor_slices(const AdafactorJob& job) {
  if (element_count(job) == 0) return 0;
  switch (adafactor_cut(job)) {
    case AdafactorCut::run: return ceil_div(job.cols, kAdafactorRun);
    case AdafactorCut::planes:
      return ceil_div(job.planes, kAdafactorPlanes / (job.rows * job.cols));
    case AdafactorCut::tile: break;
  }
  return job.planes * ceil_div(job.rows, kAdafactorTileRows) *
         ceil_div(job.cols, kAdafactorTileCols);
}

std::int64_t adafactor_lines(const AdafactorJob& job) {
  if (element_count(job) == 0 || adafactor_cut(job) != AdafactorCut::tile) return 0;
  return job.planes * (ceil_div(job.rows, kAdafactorLines) + ceil_div(job.cols, kAdafactorLines));
}

AdafactorSteps::AdafactorSteps(const std::deque<AdafactorJob>& jobs, cudaStream_t stream) {
  std::vector<AdafactorSlice> slices, tiles, lines;
  std::int64_t parts = 0;
  for (const AdafactorJob& job : jobs) {
    AdafactorTask task{};
    bind(task, job);
    task.planes = job.planes;
    task.rows = job.rows;
    task.cols = job.cols;
    task.offset = job.place();
    task.cut = adafactor_cut(job);
    task.first_slice = static_cast<std::int64_t>(slices.size());
    task.slices = adafactor_slices(job);
    append(slices, tasks_.size(), task.slices);
    if (task.cut == AdafactorCut::tile && task.slices > 0) {
      append(tiles, tasks_.size(), task.slices);
      append(lines, tasks_.size(), adafactor_lines(job));
      task.tiles_down = ceil_div(job.rows, kAdafactorTileRows);
      task.tiles_across = ceil_div(job.cols, kAdafactorTileCols);
      task.row_blocks = ceil_div(job.rows, kAdafactorLines);
      task.row_parts = parts;
      task.col_parts = task.row_parts + job.planes * task.tiles_across * job.rows;
      task.row_sums = task.col_parts + job.planes * task.tiles_down * job.cols;
      parts = task.row_sums + job.planes * task.row_blocks;
    }
    tasks_.push_back(task);
  }
  device_tasks_ = upload_table(tasks_, stream);
  uploads_ = TableUploads(device_tasks_.bytes());
  slices_ = upload_table(slices, stream);
  tiles_ = upload_table(tiles, stream);
  lines_ = upload_table(lines, stream);
  line_parts_ = DeviceBuffer(static_cast<std::size_t>(parts) * sizeof(double));
  squares_ = DeviceBuffer(slices.size() * sizeof(double));
  sums_ = DeviceBuffer(2 * slices.size() * sizeof(double));
  writes_ = DeviceBuffer(tasks_.size() * sizeof(rules::AdafactorWrite));
}

void AdafactorSteps::refresh(const std::deque<AdafactorJob>& jobs, cudaStream_t stream) {
  for (std::size_t i = 0; i < tasks_.size(); ++i) bind(tasks_[i], jobs[i]);
  std::memcpy(uploads_.next(), tasks_.data(), device_tasks_.bytes());
  uploads_.send(device_tasks_, stream);
}

void AdafactorSteps::enqueue(Control* control, const JobEntry* entries, JobResult* results,
                             cudaStream_t stream) const {
  const auto rows = [](const DeviceBuffer& table, std::size_t size) {
    return static_cast<std::int64_t>(table.bytes() / size);
  };
  AdafactorArgs args{};
  args.tasks = device_tasks_.as<const AdafactorTask>();
  args.jobs = entries;
  args.slices = slices_.as<const AdafactorSlice>();
  args.tiles = tiles_.as<const AdafactorSlice>();
  args.lines = lines_.as<const AdafactorSlice>();
  args.task_count = rows(device_tasks_, sizeof(AdafactorTask));
  args.slice_count = rows(slices_, sizeof(AdafactorSlice));
  args.tile_count = rows(tiles_, sizeof(AdafactorSlice));
  args.line_count = rows(lines_, sizeof(AdafactorSlice));
  args.line_parts = line_parts_.as<double>();
  args.squares = squares_.as<double>();
  args.sums = sums_.as<double>();
  args.writes = writes_.as<rules::AdafactorWrite>();
  args.control = control;
  args.results = results;
  launch_adafactor(args, stream);
}

std::size_t AdafactorSteps::workspace_bytes() const {
  std::size_t bytes = 0;
  for (const DeviceBuffer* buffer :
       {&device_tasks_, &slices_, &tiles_, &lines_, &line_parts_, &squares_, &sums_, &writes_}) {
    bytes += buffer->bytes();
  }
  return bytes;
}

}  // namespace rode::cuda
