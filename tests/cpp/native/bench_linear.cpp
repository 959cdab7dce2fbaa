// Speed of the products in the shapes of a model of SmolLM2-135M's size: how fast packing, one decoded token, small
// batches and prompts are, next to how fast this machine reads the same bytes.
//
//   bench_linear [threads] [dtype] [repeats]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/linear_matrix.h"
#include "kernels/linear.h"

namespace {

using namespace pocket;

constexpr int kLayers = 30;

struct Shape {
  const char* name;
  std::int64_t num_rows, num_columns;
};
constexpr Shape kLayerShapes[] = {{"qkv", 960, 576}, {"o", 576, 576}, {"gate_up", 3072, 576}, {"down", 576, 1536}};
constexpr Shape kHead = {"head", 49152, 576};

// With one thread the time that the system gave to this process, so that a loaded machine can be used for tuning.
bool cpu_time = false;

double now_s() {
  timespec time;
  clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

template <class Body>
double best_of(int repeats, Body body) {
  double best = 1e9;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const double start = now_s();
    body();
    best = std::min(best, now_s() - start);
  }
  return best;
}

// Rows of a layer's matrix: random codes, and the scales as small as random fp16 bits with this exponent can be.
std::vector<std::byte> stored_rows(DType dtype, const Shape& shape, std::mt19937& generator) {
  std::vector<std::byte> data(static_cast<std::size_t>(shape.num_rows) * row_bytes(dtype, shape.num_columns));
  for (std::size_t at = 0; at + 4 <= data.size(); at += 4) {
    const std::uint32_t bits = static_cast<std::uint32_t>(generator()) & 0xA3FFA3FFu;
    std::memcpy(data.data() + at, &bits, sizeof bits);
  }
  return data;
}

struct Model {
  std::vector<std::unique_ptr<const Matrix>> layers[std::size(kLayerShapes)];
  std::unique_ptr<const Matrix> head;
  double pack_s = 0.0;
  std::size_t num_bytes = 0;
};

std::unique_ptr<const Matrix> pack_shape(Context& context, DType dtype, const Shape& shape, std::mt19937& generator,
                                         Model& model) {
  const auto data = stored_rows(dtype, shape, generator);
  MatrixPart part;
  part.dtype = dtype;
  part.data = data.data();
  part.num_rows = shape.num_rows;
  const double start = now_s();
  auto matrix = pack_matrix(context, {&part, 1}, shape.num_columns, Activation::kInt8);
  model.pack_s += now_s() - start;
  model.num_bytes += matrix->num_bytes();
  return matrix;
}

// Reads every line of the packed weights once.
double read_all(Context& context, const Model& model) {
  std::vector<const PackedMatrix*> matrices{static_cast<const PackedMatrix*>(model.head.get())};
  for (const auto& layers : model.layers) {
    for (const auto& matrix : layers) matrices.push_back(static_cast<const PackedMatrix*>(matrix.get()));
  }
  std::vector<std::uint64_t> sums(64);
  for (const PackedMatrix* matrix : matrices) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(matrix->strip(matrix->segments()[0], 0));
    const auto count = static_cast<std::int64_t>(matrix->num_bytes() / 8);
    const std::int64_t num_tasks = 16;
    context.threads.run(num_tasks, [&](std::int64_t task, int) {
      std::uint64_t sum[8] = {};
      for (std::int64_t i = count * task / num_tasks / 8 * 8; i + 8 <= count * (task + 1) / num_tasks; i += 8) {
        for (int j = 0; j < 8; ++j) sum[j] += words[i + j];
      }
      for (int j = 0; j < 8; ++j) sums[static_cast<std::size_t>(task)] += sum[j];
    });
  }
  double total = 0.0;
  for (const std::uint64_t sum : sums) total += static_cast<double>(sum);
  return total;
}

struct Buffers {
  std::vector<float> x, y;
  ActivationRows rows;
};

double multiply_shape(Context& context, const Matrix& matrix, Buffers& buffers, std::int64_t num_rows) {
  multiply(context, matrix, buffers.rows, nullptr, buffers.y.data(), matrix.num_rows(), Store::kAssign);
  return 2.0 * static_cast<double>(num_rows * matrix.num_rows() * matrix.num_columns());
}

// All products of a step; returns the operations.
double step(Context& context, const Model& model, Buffers& buffers, std::int64_t num_rows, std::int64_t head_rows) {
  double operations = 0.0;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (std::size_t shape = 0; shape < std::size(kLayerShapes); ++shape) {
      const std::int64_t columns = kLayerShapes[shape].num_columns;
      buffers.rows.assign(context, buffers.x.data(), num_rows, columns, columns, Activation::kInt8);
      operations += multiply_shape(context, *model.layers[shape][layer], buffers, num_rows);
    }
  }
  if (head_rows > 0) {
    buffers.rows.assign(context, buffers.x.data(), head_rows, kHead.num_columns, kHead.num_columns, Activation::kInt8);
    operations += multiply_shape(context, *model.head, buffers, head_rows);
  }
  return operations;
}

}  // namespace

int main(int argc, char** argv) {
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto dtype = dtype_named(argc > 2 ? argv[2] : "Q4_1");
  const int repeats = argc > 3 ? std::atoi(argv[3]) : 20;
  if (num_threads < 1 || !dtype || kHead.num_columns % info(*dtype).block_elements != 0) {
    std::fprintf(stderr, "usage: bench_linear [threads] [dtype that 576 columns can have] [repeats]\n");
    return 2;
  }
  cpu_time = num_threads == 1;
  ThreadPool pool(num_threads);
  Context context{pool};
  std::mt19937 generator(1);
  Model model;
  for (std::size_t shape = 0; shape < std::size(kLayerShapes); ++shape) {
    for (int layer = 0; layer < kLayers; ++layer) {
      model.layers[shape].push_back(pack_shape(context, *dtype, kLayerShapes[shape], generator, model));
    }
  }
  const bool plain = !is_block_type(*dtype);
  model.head = pack_shape(context, plain ? *dtype : DType::kQ8_0, kHead, generator, model);
  const double megabytes = static_cast<double>(model.num_bytes) * 1e-6;
  std::printf("%s, %d threads, %s, %.1f MB packed in %.3f s\n", instruction_set(), num_threads,
              std::string(info(*dtype).name).c_str(), megabytes, model.pack_s);

  Buffers buffers;
  buffers.x.resize(512 * 1536);
  buffers.y.resize(static_cast<std::size_t>(512 * 3072 + 16 * kHead.num_rows));
  std::normal_distribution<float> normal;
  for (float& value : buffers.x) value = normal(generator);

  volatile double sink = 0.0;
  const double read_s = best_of(repeats, [&] { sink = read_all(context, model); });
  std::printf("%-22s %8.3f ms %8.1f GB/s\n", "reading all weights", read_s * 1e3, megabytes * 1e-3 / read_s);
  for (const std::int64_t rows : {1, 2, 4, 8, 16}) {
    double operations = 0.0;
    const double seconds = best_of(repeats, [&] { operations = step(context, model, buffers, rows, rows); });
    std::printf("%2d rows, with head     %8.3f ms %8.1f GB/s %8.1f GOP/s %6.1f %% of reading\n", static_cast<int>(rows),
                seconds * 1e3, megabytes * 1e-3 / seconds, operations * 1e-9 / seconds, 100.0 * read_s / seconds);
  }
  for (const std::int64_t rows : {32, 128, 512}) {
    double operations = 0.0;
    const double seconds =
        best_of(std::max(1, repeats / 4), [&] { operations = step(context, model, buffers, rows, 0); });
    std::printf("%3d rows, layers       %8.3f ms %22.1f GOP/s %8.0f rows/s\n", static_cast<int>(rows), seconds * 1e3,
                operations * 1e-9 / seconds, static_cast<double>(rows) / seconds);
  }
  for (std::size_t shape = 0; shape <= std::size(kLayerShapes); ++shape) {
    const bool is_head = shape == std::size(kLayerShapes);
    const Shape& what = is_head ? kHead : kLayerShapes[shape];
    const Matrix& matrix = is_head ? *model.head : *model.layers[shape][0];
    std::printf("%-8s %5dx%-5d", what.name, static_cast<int>(what.num_rows), static_cast<int>(what.num_columns));
    for (const std::int64_t rows : {1, 8, 512}) {
      if (is_head && rows > 16) continue;
      buffers.rows.assign(context, buffers.x.data(), rows, what.num_columns, what.num_columns, Activation::kInt8);
      double operations = 0.0;
      const double seconds =
          best_of(repeats, [&] { operations = multiply_shape(context, matrix, buffers, rows); });
      std::printf("  %3d rows %9.1f us %6.1f GB/s %6.1f GOP/s", static_cast<int>(rows), seconds * 1e6,
                  static_cast<double>(matrix.num_bytes()) * 1e-9 / seconds, operations * 1e-9 / seconds);
    }
    std::printf("\n");
  }
  return 0;
}
