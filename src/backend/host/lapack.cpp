// SPDX-License-Identifier: Apache-2.0
// Calls LAPACK by its Fortran names and turns its layout and error codes into ours.
#include "backend/host/lapack.h"

#include <algorithm>

#include <fmt/format.h>

#include "rode/error.h"

// Fortran names, 32-bit integers; the trailing arguments are the lengths of the strings.
// NOLINTBEGIN(readability-identifier-naming)
extern "C" {
void dsyevd_(const char* jobz, const char* uplo, const int* n, double* a, const int* lda, double* w,
             double* work, const int* lwork, int* iwork, const int* liwork, int* info, std::size_t,
             std::size_t);
void sgeqrf_(const int* m, const int* n, float* a, const int* lda, float* tau, float* work,
             const int* lwork, int* info);
void sorgqr_(const int* m, const int* n, const int* k, float* a, const int* lda, const float* tau,
             float* work, const int* lwork, int* info);
}
// NOLINTEND(readability-identifier-naming)

namespace rode::host {
namespace {

// dsyevd counts 2 n^2 doubles of work in an int.
constexpr std::int64_t kMostRows = 32000;

int checked(std::int64_t n) {
  if (n > kMostRows) {
    throw Error(ErrorKind::unsupported, "soap",
                fmt::format("a mode of extent {} exceeds the {} that LAPACK factorizes; lower "
                            "max_precond_dim",
                            n, kMostRows));
  }
  return static_cast<int>(n);
}

void check_info(int info, const char* routine, int n) {
  if (info == 0) return;
  throw Error(ErrorKind::unsupported, "soap",
              fmt::format("{} refused to plan a {} x {} matrix (info {}); lower max_precond_dim",
                          routine, n, n, info));
}

struct EigenSizes {
  int work, integers;
};

EigenSizes eigen_sizes(int n) {
  double work = 0;
  int integers = 0, info = 0;
  const int query = -1;
  dsyevd_("V", "U", &n, nullptr, &n, nullptr, &work, &query, &integers, &query, &info, 1, 1);
  check_info(info, "dsyevd", n);
  return {static_cast<int>(work), integers};
}

int qr_size(int n) {
  float factor = 0, form = 0;
  int info = 0;
  const int query = -1;
  sgeqrf_(&n, &n, nullptr, &n, nullptr, &factor, &query, &info);
  check_info(info, "sgeqrf", n);
  sorgqr_(&n, &n, &n, nullptr, &n, nullptr, &form, &query, &info);
  check_info(info, "sorgqr", n);
  return static_cast<int>(std::max(factor, form));
}

}  // namespace

std::size_t eigen_workspace_floats(std::int64_t n) {
  const EigenSizes sizes = eigen_sizes(checked(n));
  const auto side = static_cast<std::size_t>(n);
  return 2 * (side * side + side + static_cast<std::size_t>(sizes.work)) +
         static_cast<std::size_t>(sizes.integers);
}

std::size_t qr_workspace_floats(std::int64_t n) {
  return static_cast<std::size_t>(n) + static_cast<std::size_t>(qr_size(checked(n)));
}

bool eigenvectors(const float* symmetric, std::int64_t n, float* basis, float* workspace) {
  const int side = checked(n);
  const EigenSizes sizes = eigen_sizes(side);
  auto* a = reinterpret_cast<double*>(workspace);
  double* eigenvalues = a + n * n;
  double* work = eigenvalues + n;
  auto* integers = reinterpret_cast<int*>(work + sizes.work);
  std::copy(symmetric, symmetric + n * n, a);
  // As the authors do: a zero gradient gives the identity.
  for (std::int64_t i = 0; i < n; ++i) a[i * n + i] += 1e-30;
  int info = 0;
  dsyevd_("V", "U", &side, a, &side, eigenvalues, work, &sizes.work, integers, &sizes.integers,
          &info, 1, 1);
  if (info != 0) return false;
  // Column j of LAPACK's result, ascending, is row j here.
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      basis[i * n + j] = static_cast<float>(a[(n - 1 - j) * n + i]);
    }
  }
  return true;
}

bool orthonormalize(float* columns, std::int64_t n, float* workspace) {
  const int side = checked(n);
  const int size = qr_size(side);
  float* tau = workspace;
  float* work = workspace + n;
  int info = 0;
  sgeqrf_(&side, &side, columns, &side, tau, work, &size, &info);
  if (info != 0) return false;
  sorgqr_(&side, &side, &side, columns, &side, tau, work, &size, &info);
  return info == 0;
}

}  // namespace rode::host
