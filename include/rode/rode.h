// SPDX-License-Identifier: Apache-2.0
// Everything a user of the engine needs.
#pragma once

#include "rode/diagnostics.h"
#include "rode/error.h"
#include "rode/matrix_parts.h"
#include "rode/method.h"
#include "rode/optim/list.h"
#include "rode/optimizer.h"
#include "rode/parameter.h"
#include "rode/routing.h"
#include "rode/safetensors.h"
#include "rode/schedule.h"
#include "rode/shard_plan.h"
#include "rode/share.h"
#include "rode/stored_state.h"
#include "rode/tensor_view.h"
#include "rode/version.h"
