// SPDX-License-Identifier: Apache-2.0
// Everything a user of the engine needs.
#pragma once

#include "rode/diagnostics.h"
#include "rode/error.h"
#include "rode/method.h"
#include "rode/optim/adafactor.h"
#include "rode/optim/adamw.h"
#include "rode/optim/ademamix.h"
#include "rode/optim/mars_m.h"
#include "rode/optim/muon.h"
#include "rode/optim/rode.h"
#include "rode/optim/sgd.h"
#include "rode/optim/soap.h"
#include "rode/optimizer.h"
#include "rode/parameter.h"
#include "rode/routing.h"
#include "rode/safetensors.h"
#include "rode/schedule.h"
#include "rode/tensor_view.h"
#include "rode/version.h"
