// SPDX-License-Identifier: Apache-2.0
// Downloads through libcurl, resumed where they stopped.
#include <memory>
#include <system_error>

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "core/file_io.h"
#include "lab/fetch/dataset.h"
#include "rode/version.h"

namespace rode::lab {
namespace {

constexpr std::string_view kOperation = "download";

struct Transfer {
  int fd = -1;
  int write_error = 0;
  std::uint64_t offset = 0;  // what was there before
  const std::function<void(std::uint64_t, std::uint64_t)>* progress = nullptr;
};

// libcurl's callbacks: C, so nothing may be thrown through them.
std::size_t write_some(char* data, std::size_t size, std::size_t count, void* user) {
  auto* transfer = static_cast<Transfer*>(user);
  const std::size_t total = size * count;
  for (std::size_t done = 0; done < total;) {
    const auto written = ::write(transfer->fd, data + done, total - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      transfer->write_error = errno;
      return 0;
    }
    done += static_cast<std::size_t>(written);
  }
  return total;
}

int report_some(void* user, curl_off_t total, curl_off_t now, curl_off_t /*up*/,
                curl_off_t /*up_now*/) {
  const auto* transfer = static_cast<const Transfer*>(user);
  if (transfer->progress == nullptr || !*transfer->progress || now == 0) return 0;
  try {
    const std::uint64_t whole =
        total > 0 ? static_cast<std::uint64_t>(total) + transfer->offset : 0;
    (*transfer->progress)(static_cast<std::uint64_t>(now) + transfer->offset, whole);
  } catch (...) {
    return 1;
  }
  return 0;
}

struct FreeCurl {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};

Error failure(const std::string& url, CURLcode code, const char* detail, long status) {
  const std::string reason = detail[0] != '\0' ? detail : curl_easy_strerror(code);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return {ErrorKind::file, kOperation,
              fmt::format("the host of '{}' cannot be reached ({}); check the network, or give a "
                          "mirror with --mirror or RODE_DATA_MIRROR (a URL; file:// works too)",
                          url, reason)};
    case CURLE_HTTP_RETURNED_ERROR:
      return {ErrorKind::file, kOperation,
              fmt::format("'{}' returned status {}; expected the file; check the mirror's "
                          "address",
                          url, status)};
    default:
      return {ErrorKind::file, kOperation,
              fmt::format("'{}' stopped ({}); run the same command again to resume", url, reason)};
  }
}

}  // namespace

void download(const std::string& url, const std::filesystem::path& part,
              const std::function<void(std::uint64_t, std::uint64_t)>& progress) {
  // Once per process, before any thread may use it.
  static const CURLcode initialised = curl_global_init(CURL_GLOBAL_DEFAULT);
  const std::unique_ptr<CURL, FreeCurl> handle(curl_easy_init());
  if (initialised != CURLE_OK || !handle) throw std::bad_alloc();
  FileDescriptor file(::open(part.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  const auto local_error = [&](int number) {
    return file_error(kOperation, part.string(),
                      fmt::format("cannot be written ({}); the partial file is kept; free space or "
                                  "choose another folder, and run the command again",
                                  std::generic_category().message(number)));
  };
  if (file.get() < 0) throw local_error(errno);

  Transfer transfer;
  transfer.fd = file.get();
  transfer.progress = &progress;
  transfer.offset = static_cast<std::uint64_t>(std::filesystem::file_size(part));
  char detail[CURL_ERROR_SIZE] = "";
  const std::string agent = fmt::format("rode/{}", version());
  CURL* curl = handle.get();
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https,file");
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, agent.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, 20L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);  // a dead connection ends
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, 60L);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, write_some);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, report_some);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_RESUME_FROM_LARGE, static_cast<curl_off_t>(transfer.offset));
  const CURLcode code = curl_easy_perform(curl);
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  if (transfer.write_error != 0) throw local_error(transfer.write_error);
  const bool again = transfer.offset > 0 && (code == CURLE_RANGE_ERROR || status == 416 ||
                                             code == CURLE_BAD_DOWNLOAD_RESUME);
  if (again) {
    // A host that cannot resume, or a part longer than the file: from the start.
    if (::ftruncate(file.get(), 0) != 0) throw local_error(errno);
    file.close();
    download(url, part, progress);
    return;
  }
  if (code != CURLE_OK) {
    std::error_code ignored;  // nothing was received: leave nothing
    if (std::filesystem::file_size(part, ignored) == 0) std::filesystem::remove(part, ignored);
    throw failure(url, code, detail, status);
  }
  if (!file.sync() || !file.close()) throw local_error(errno);
}

}  // namespace rode::lab
