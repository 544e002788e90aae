// SPDX-License-Identifier: Apache-2.0
// One job's row in the tables.
#pragma once

#include "backend/cuda/tables/entries.h"
#include "backend/jobs.h"

namespace rode::cuda {

// Each fills in what may change between steps; slices and slots of an entry are left alone.
void fill(JobEntry& entry, const RodeJob& job);
void fill(JobEntry& entry, const MuonJob& job);
void fill(JobEntry& entry, const SoapJob& job);
void fill(JobEntry& entry, const AdafactorJob& job);
void fill(JobEntry& entry, const ElementJob& job);
void fill(MatrixEntry& entry, const RodeJob& job);
void fill(MatrixEntry& entry, const MuonJob& job);
void fill(ElementEntry& entry, const ElementJob& job);

WeightView view_of(const Weights& weight);

// Whether the job's arrays and its slot can be walked in runs of four.
bool slot_in_fours(const JobEntry& job, const MatrixEntry& matrix);

}  // namespace rode::cuda
