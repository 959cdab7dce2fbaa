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

#include "kernels/cpu/linear/matrix.h"
#include "kernels/cpu/simd/dispatch.h"
#include "kernels/devices.h"
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

// The time of a pass over many matrices as the sum of each one's best time over the repeats: what the pass takes where
// nothing else runs, even if no whole pass was left alone. Weights are as cold as in a pass: all are used in turn.
class BestTimes {
 public:
  void begin_pass() { next_ = 0; }
  template <class Body>
  void time(Body body) {
    const double start = now_s();
    body();
    const double seconds = now_s() - start;
    if (next_ == best_.size()) best_.push_back(seconds);
    best_[next_] = std::min(best_[next_], seconds);
    ++next_;
  }
  double total() const {
    double sum = 0.0;
    for (const double seconds : best_) sum += seconds;
    return sum;
  }

 private:
  std::vector<double> best_;
  std::size_t next_ = 0;
};

// Reads every line of a matrix once.
void read_matrix(Context& context, const Matrix& matrix, std::uint64_t& total) {
  constexpr std::int64_t kTasks = 16;
  const auto& packed = static_cast<const cpu::PackedMatrix&>(matrix);
  const auto* words = reinterpret_cast<const std::uint64_t*>(packed.strip(packed.segments()[0], 0));
  const auto num_lines = static_cast<std::int64_t>(packed.num_bytes() / 64);
  std::uint64_t sums[kTasks] = {};
  context.threads.run(kTasks, [&](std::int64_t task, int) {
    std::uint64_t sum[8] = {};
    for (std::int64_t line = num_lines * task / kTasks; line < num_lines * (task + 1) / kTasks; ++line) {
      for (int j = 0; j < 8; ++j) sum[j] += words[8 * line + j];
    }
    for (int j = 0; j < 8; ++j) sums[task] += sum[j];
  });
  for (const std::uint64_t sum : sums) total += sum;
}

struct Buffers {
  std::vector<float> x, y;
  ActivationRows rows;
};

void multiply_shape(Context& context, const Matrix& matrix, Buffers& buffers, std::int64_t num_rows) {
  const std::int64_t columns = matrix.num_columns();
  buffers.rows.assign(context, buffers.x.data(), num_rows, columns, columns, Activation::kInt8);
  multiply(context, matrix, buffers.rows, nullptr, buffers.y.data(), matrix.num_rows(), Store::kAssign);
}

double operations_of(const Matrix& matrix, std::int64_t num_rows) {
  return 2.0 * static_cast<double>(num_rows * matrix.num_rows() * matrix.num_columns());
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
  Context context = open_device("cpu", pool);
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
  std::printf("%s, %d threads, %s, %.1f MB packed in %.3f s\n", cpu::instruction_set(), num_threads,
              std::string(info(*dtype).name).c_str(), megabytes, model.pack_s);

  Buffers buffers;
  buffers.x.resize(512 * 1536);
  buffers.y.resize(static_cast<std::size_t>(512 * 3072 + 16 * kHead.num_rows));
  std::normal_distribution<float> normal;
  for (float& value : buffers.x) value = normal(generator);

  std::vector<const Matrix*> layers;
  for (std::size_t layer = 0; layer < kLayers; ++layer) {
    for (const auto& matrices : model.layers) layers.push_back(matrices[layer].get());
  }
  std::vector<const Matrix*> all = layers;
  all.push_back(model.head.get());

  std::uint64_t total = 0;
  BestTimes reading;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    reading.begin_pass();
    for (const Matrix* matrix : all) reading.time([&] { read_matrix(context, *matrix, total); });
  }
  const double read_s = reading.total();
  std::printf("%-22s %8.3f ms %8.1f GB/s   (sum %llx)\n", "reading all weights", read_s * 1e3,
              megabytes * 1e-3 / read_s, static_cast<unsigned long long>(total));
  for (const std::int64_t rows : {1, 2, 4, 8, 16, 32, 128, 512}) {
    const std::vector<const Matrix*>& matrices = rows > 16 ? layers : all;
    BestTimes times;
    for (int repeat = 0; repeat < (rows > 16 ? (repeats + 3) / 4 : repeats); ++repeat) {
      times.begin_pass();
      for (const Matrix* matrix : matrices) times.time([&] { multiply_shape(context, *matrix, buffers, rows); });
    }
    double operations = 0.0;
    for (const Matrix* matrix : matrices) operations += operations_of(*matrix, rows);
    const double seconds = times.total();
    std::printf("%3d rows, %-12s %8.3f ms %8.1f GOP/s %8.0f rows/s", static_cast<int>(rows),
                rows > 16 ? "layers" : "with head", seconds * 1e3, operations * 1e-9 / seconds,
                static_cast<double>(rows) / seconds);
    if (rows <= 16) {
      std::printf(" %8.1f GB/s, %5.1f %% of reading", megabytes * 1e-3 / seconds, 100.0 * read_s / seconds);
    }
    std::printf("\n");
  }
  for (std::size_t shape = 0; shape <= std::size(kLayerShapes); ++shape) {
    const bool is_head = shape == std::size(kLayerShapes);
    const Shape& what = is_head ? kHead : kLayerShapes[shape];
    const Matrix& matrix = is_head ? *model.head : *model.layers[shape][0];
    std::printf("%-8s %5dx%-5d", what.name, static_cast<int>(what.num_rows), static_cast<int>(what.num_columns));
    for (const std::int64_t rows : {1, 8, 512}) {
      if (is_head && rows > 16) continue;
      const double operations = operations_of(matrix, rows);
      const double seconds = best_of(repeats, [&] { multiply_shape(context, matrix, buffers, rows); });
      std::printf("  %3d rows %9.1f us %6.1f GB/s %6.1f GOP/s", static_cast<int>(rows), seconds * 1e6,
                  static_cast<double>(matrix.num_bytes()) * 1e-9 / seconds, operations * 1e-9 / seconds);
    }
    std::printf("\n");
  }
  return 0;
}
