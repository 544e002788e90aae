// SPDX-License-Identifier: Apache-2.0
// A cache of oneDNN matrix products, and the cutting of one product into blocks.
#include "backend/cpu/onednn.h"

#if defined(RODE_WITH_ONEDNN)
#include <dnnl.hpp>
#endif
#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "backend/cpu/blas.h"
#include "rode/error.h"

namespace rode::cpu {

#if defined(RODE_WITH_ONEDNN)

namespace {

using dnnl::memory;

[[noreturn]] void fail(const Bf16Product& p, const dnnl::error& error) {
  throw Error(ErrorKind::unsupported, "bf16 product",
              fmt::format("oneDNN refuses {} x {} x {}: {}; use ns_dtype=fp32", p.m, p.n, p.k,
                          error.what()));
}

memory::desc describe(std::int64_t rows, std::int64_t cols, bool trans, std::int64_t ld,
                      memory::data_type type) {
  return {{rows, cols}, type, trans ? memory::dims{1, ld} : memory::dims{ld, 1}};
}

struct Entry {
  memory::desc a, b, c, scratch;
  dnnl::matmul primitive;
};

Entry make_entry(const Bf16Product& p, const dnnl::engine& engine) {
  Entry entry;
  entry.a = describe(p.m, p.k, p.trans_a, p.lda, memory::data_type::bf16);
  entry.b = describe(p.k, p.n, p.trans_b, p.ldb, memory::data_type::bf16);
  entry.c = describe(p.m, p.n, false, p.ldc, memory::data_type::f32);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc desc(engine, entry.a, entry.b, entry.c, attributes);
#else
  const dnnl::matmul::primitive_desc desc({entry.a, entry.b, entry.c}, attributes, engine);
#endif
  entry.scratch = desc.scratchpad_desc();
  entry.primitive = dnnl::matmul(desc);
  return entry;
}

// Shapes are those of the parameters, so the cache stays small and is never emptied.
class Cache {
 public:
  static Cache& instance() {
    // Never destroyed: a thread may still multiply while the process ends.
    static Cache& cache = *new Cache;
    return cache;
  }

  const dnnl::engine& engine() const { return engine_; }

  const Entry& get(const Bf16Product& product) {
    const std::lock_guard lock(mutex_);
    auto found = entries_.find(product);
    if (found == entries_.end()) {
      // The code depends on the number of threads that are to run it.
      const SingleThreadedBlas single;
      found = entries_.emplace(product, make_entry(product, engine_)).first;
    }
    return found->second;  // stays in place while others are added
  }

 private:
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  std::mutex mutex_;
  std::map<Bf16Product, Entry> entries_;
};

}  // namespace

bool bf16_products_available() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;
#else
  return false;
#endif
}

std::size_t prepare_product(const Bf16Product& product) try {
  return Cache::instance().get(product).scratch.get_size();
} catch (const dnnl::error& error) {
  fail(product, error);
}

void multiply(const Bf16Product& product, const std::uint16_t* a, const std::uint16_t* b, float* c,
              void* scratch) try {
  Cache& cache = Cache::instance();
  const dnnl::engine& engine = cache.engine();
  const Entry& entry = cache.get(product);
  dnnl::stream stream(engine);
  // oneDNN's handles have no const; operands are only read.
  entry.primitive.execute(
      stream, {{DNNL_ARG_SRC, memory(entry.a, engine, const_cast<std::uint16_t*>(a))},
               {DNNL_ARG_WEIGHTS, memory(entry.b, engine, const_cast<std::uint16_t*>(b))},
               {DNNL_ARG_DST, memory(entry.c, engine, c)},
               {DNNL_ARG_SCRATCHPAD, memory(entry.scratch, engine, scratch)}});
  stream.wait();
} catch (const dnnl::error& error) {
  fail(product, error);
}

#else

bool bf16_products_available() { return false; }

std::size_t prepare_product(const Bf16Product&) { return 0; }

void multiply(const Bf16Product& product, const std::uint16_t*, const std::uint16_t*, float*,
              void*) {
  throw Error(ErrorKind::unsupported, "bf16 product",
              fmt::format("{} x {} x {} in a library built without oneDNN; configure with "
                          "RODE_WITH_ONEDNN=ON",
                          product.m, product.n, product.k));
}

#endif

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

Bf16Product product_of(const Bf16Blocks& blocks, const Bf16Blocks::Part& part) {
  Bf16Product product = blocks.whole;
  product.m = part.height;
  product.n = part.width;
  return product;
}

}  // namespace

std::int64_t Bf16Blocks::tasks() const {
  const std::int64_t across = ceil_div(whole.n, width);
  return upper ? across * (across + 1) / 2 : ceil_div(whole.m, height) * across;
}

Bf16Blocks::Part Bf16Blocks::part(std::int64_t task) const {
  std::int64_t down = 0, row = ceil_div(whole.n, width);
  while (task >= row) {
    task -= row;
    ++down;
    if (upper) --row;
  }
  const std::int64_t i = down * height, j = ((upper ? down : 0) + task) * width;
  return {i, std::min(height, whole.m - i), j, std::min(width, whole.n - j)};
}

std::size_t Bf16Blocks::prepare() const {
  // Blocks differ in shape only in the last row and column of blocks.
  const std::int64_t across = ceil_div(whole.n, width), last = tasks() - 1;
  std::size_t bytes = 0;
  for (const std::int64_t task :
       {std::int64_t{0}, across - 1, upper ? last : last - across + 1, last}) {
    bytes = std::max(bytes, prepare_product(product_of(*this, part(task))));
  }
  return bytes;
}

void Bf16Blocks::run(const Part& part, const std::uint16_t* a, const std::uint16_t* b, float* c,
                     void* scratch) const {
  multiply(product_of(*this, part), a + part.i * (whole.trans_a ? 1 : whole.lda),
           b + part.j * (whole.trans_b ? whole.ldb : 1), c + part.i * whole.ldc + part.j, scratch);
}

}  // namespace rode::cpu
