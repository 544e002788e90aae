// SPDX-License-Identifier: Apache-2.0
// Marks a loop for compilation for several instruction sets.
#pragma once

// Function versions are chosen when the program is loaded. The resolvers run before a
// sanitizer is ready, so sanitizer builds keep the baseline version alone.
#if defined(__x86_64__) && !defined(RODE_SANITIZED)
#define RODE_VERSIONS __attribute__((target_clones("avx512f", "avx2", "default")))
// Of loops over bytes and 64-bit products: x86-64-v4 has them in vectors, avx512f alone has not.
#define RODE_BYTE_VERSIONS __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define RODE_VERSIONS
#define RODE_BYTE_VERSIONS
#endif

// Before a loop whose iterations do not depend on each other. Not `omp simd`: it keeps an
// iteration's local arrays in memory, and then the loop is not vectorised.
#if defined(__clang__)
#define RODE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define RODE_INDEPENDENT _Pragma("GCC ivdep")
#endif
