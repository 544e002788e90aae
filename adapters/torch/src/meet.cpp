// SPDX-License-Identifier: Apache-2.0
// How processes find each other: a store of c10d's, then a group of gloo or NCCL over it.
#include <algorithm>
#include <map>
#include <string_view>
#include <thread>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "gloo_group.h"
#include "nccl_group.h"
#include "rode/error.h"
#include "rode/torch/process_group.h"
#include "rode/torch/ranks.h"

namespace rode::torch {
namespace {

using StorePointer = c10::intrusive_ptr<c10d::Store>;

Error no_meeting(ErrorKind kind, const std::string& text) {
  return Error(kind, "process group", text);
}

std::string place_of(const Meeting& meeting) {
  if (!meeting.file.empty()) return "'" + meeting.file + "'";
  return meeting.host + ":" + std::to_string(meeting.port);
}

std::string seconds_of(const Meeting& meeting) {
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(meeting.timeout).count()) +
         " s";
}

StorePointer open_store(const Meeting& meeting) {
  if (!meeting.file.empty()) {
    return c10::make_intrusive<c10d::FileStore>(meeting.file, meeting.size);
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(meeting.port);
  options.isServer = meeting.rank == 0 && !meeting.hosted;
  options.waitWorkers = false;  // or the error would only count who is there
  options.timeout = meeting.timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(meeting.host, options);
  } catch (const std::exception& error) {
    const std::string cause(error.what());
    throw no_meeting(ErrorKind::process_group,
                     "rank " + std::to_string(meeting.rank) + " could not " +
                         (options.isServer ? "listen" : "reach rank 0") + " at " +
                         place_of(meeting) + " within " + seconds_of(meeting) + " (" +
                         cause.substr(0, cause.find('\n')) +
                         (options.isServer ? "); choose a free MASTER_PORT"
                                           : "); start rank 0 there, or correct MASTER_ADDR and "
                                             "MASTER_PORT"));
  }
}

// Until every rank has left its name. Throws with the names of those that have not.
void await(c10d::Store& store, const Meeting& meeting) {
  const auto key = [](int rank) { return "here/" + std::to_string(rank); };
  if (store.add(key(meeting.rank), 1) > 1) {
    throw no_meeting(ErrorKind::process_group, "two processes have joined " + place_of(meeting) +
                                                   " as rank " + std::to_string(meeting.rank) +
                                                   "; give each its own RANK");
  }
  std::vector<int> missing;
  for (int rank = 0; rank < meeting.size; ++rank) missing.push_back(rank);
  const auto end = std::chrono::steady_clock::now() + meeting.timeout;
  for (;;) {
    std::erase_if(missing, [&](int rank) { return store.check({key(rank)}); });
    if (missing.empty()) return;
    if (std::chrono::steady_clock::now() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::string names;
  for (const int rank : missing) names += (names.empty() ? "" : ", ") + std::to_string(rank);
  throw no_meeting(ErrorKind::process_group,
                   "rank " + names + " of " + std::to_string(meeting.size) + " has not joined " +
                       place_of(meeting) + " within " + seconds_of(meeting) + ", says rank " +
                       std::to_string(meeting.rank) + "; start it, or allow more time");
}

// ---- gloo or NCCL ------------------------------------------------------------------------------

std::string_view backend_name(GroupBackend backend) {
  switch (backend) {
    case GroupBackend::gloo: return "gloo";
    case GroupBackend::nccl: return "nccl";
    case GroupBackend::automatic: break;
  }
  return "auto";
}

// What a rank sends the others: the requested backend, and its GPU or why NCCL cannot be used.
struct Offer {
  std::string asked, gpu, obstacle;
};

Offer own_offer(const Meeting& meeting) {
  Offer own{std::string(backend_name(meeting.backend)), "", ""};
  if (meeting.backend == GroupBackend::gloo) return own;
  own.obstacle = meeting.device < 0 ? "no CUDA device was given" : nccl_obstacle();
  try {
    if (own.obstacle.empty()) own.gpu = gpu_identity(meeting.device);
  } catch (const std::exception& error) {
    const std::string cause(error.what());
    own.obstacle = "no CUDA device " + std::to_string(meeting.device) + " (" +
                   cause.substr(0, cause.find('\n')) + ")";
  }
  return own;
}

// In the order of the ranks.
std::vector<Offer> exchanged(c10d::Store& store, const Meeting& meeting, const Offer& own) {
  const auto key = [](int rank) { return "backend/" + std::to_string(rank); };
  store.set(key(meeting.rank), own.asked + '\n' + own.gpu + '\n' + own.obstacle);
  std::vector<Offer> all;
  for (int rank = 0; rank < meeting.size; ++rank) {
    const std::vector<std::uint8_t> bytes = store.get(key(rank));
    const std::string text(bytes.begin(), bytes.end());
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    all.push_back({text.substr(0, first), text.substr(first + 1, second - first - 1),
                   text.substr(second + 1)});
  }
  return all;
}

// Why not all ranks can use NCCL; empty: they can.
std::string obstacle_of(const std::vector<Offer>& offers) {
  std::map<std::string, std::size_t> owners;
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    const Offer& offer = offers[rank];
    if (!offer.obstacle.empty()) return "rank " + std::to_string(rank) + ": " + offer.obstacle;
    const auto [owner, fresh] = owners.emplace(offer.gpu, rank);
    if (!fresh) {
      return "ranks " + std::to_string(owner->second) + " and " + std::to_string(rank) +
             " use the same GPU, but NCCL allows one process per GPU";
    }
  }
  return {};
}

// The same on all ranks, since all of them decide from what all have sent.
bool takes_nccl(c10d::Store& store, const Meeting& meeting) {
  const std::vector<Offer> offers = exchanged(store, meeting, own_offer(meeting));
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    if (offers[rank].asked == offers[0].asked) continue;
    throw no_meeting(ErrorKind::process_group,
                     "rank " + std::to_string(rank) + " has backend = " + offers[rank].asked +
                         ", rank 0 has " + offers[0].asked + "; choose the same on every rank");
  }
  if (meeting.backend == GroupBackend::gloo) return false;
  const std::string obstacle = obstacle_of(offers);
  if (meeting.backend == GroupBackend::nccl && !obstacle.empty()) {
    throw no_meeting(ErrorKind::unsupported,
                     "backend = nccl is not available: " + obstacle +
                         "; give every rank its own GPU, or choose backend = gloo");
  }
  return obstacle.empty();
}

ProcessGroup make_group(const StorePointer& store, const Meeting& meeting) {
  ProcessGroupOptions options{.timeout = meeting.timeout, .store = store, .device = {}};
  if (!takes_nccl(*store, meeting)) {
    const auto own = c10::make_intrusive<c10d::PrefixStore>("gloo", store);
    return process_group(make_gloo_group(own, meeting.rank, meeting.size, meeting.timeout,
                                         /*on_this_machine=*/!meeting.file.empty()),
                         std::move(options));
  }
  options.device = c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(meeting.device));
  const auto own = c10::make_intrusive<c10d::PrefixStore>("nccl", store);
  return process_group(make_nccl_group(own, meeting.rank, meeting.size, meeting.timeout),
                       std::move(options));
}

}  // namespace

ProcessGroup meet(const Meeting& meeting) {
  const bool place = meeting.file.empty() != meeting.host.empty();
  if (meeting.size < 1 || meeting.rank < 0 || meeting.rank >= meeting.size || !place) {
    throw no_meeting(ErrorKind::invalid_argument,
                     "rank " + std::to_string(meeting.rank) + " of " +
                         std::to_string(meeting.size) + " at " + place_of(meeting) +
                         "; expected a rank below the number of ranks, and a file or a host");
  }
  c10::initLogging();  // TORCH_CPP_LOG_LEVEL acts on c10d's own lines, as in Python
  StorePointer store = open_store(meeting);
  try {
    store->setTimeout(meeting.timeout);
    store = c10::make_intrusive<c10d::PrefixStore>("rode/" + meeting.prefix, store);
    await(*store, meeting);
    return make_group(store, meeting);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {  // of sockets, and of a store whose server has ended
    const std::string cause(error.what());
    throw no_meeting(ErrorKind::process_group,
                     "rank " + std::to_string(meeting.rank) +
                         " could not connect with the others " + "that came to " +
                         place_of(meeting) + " (" + cause.substr(0, cause.find('\n')) +
                         "); see the errors of the other ranks; GLOO_SOCKET_IFNAME chooses the "
                         "network interface");
  }
}

}  // namespace rode::torch
