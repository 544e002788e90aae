// SPDX-License-Identifier: Apache-2.0
// How processes find each other: a store of c10d's, then a group of gloo over it.
#include <algorithm>
#include <thread>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "gloo_group.h"
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
    throw no_meeting(ErrorKind::process_group, "two processes came to " + place_of(meeting) +
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
                   "rank " + names + " of " + std::to_string(meeting.size) + " has not come to " +
                       place_of(meeting) + " within " + seconds_of(meeting) + ", says rank " +
                       std::to_string(meeting.rank) + "; start it, or allow more time");
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
    const auto backend =
        make_gloo_group(c10::make_intrusive<c10d::PrefixStore>("gloo", store), meeting.rank,
                        meeting.size, meeting.timeout, /*on_this_machine=*/!meeting.file.empty());
    return process_group(backend, {.timeout = meeting.timeout, .store = store});
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
