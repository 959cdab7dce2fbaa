#include "core/gguf_split.h"

#include <optional>
#include <string_view>

#include "core/error.h"

namespace pocket {
namespace {

// "<stem>-00001-of-00003.gguf": the numbers of a part's name.
struct SplitName {
  std::string stem;
  int part = 0;
  int count = 0;
};

std::optional<SplitName> split_name(const std::string& path) {
  constexpr std::string_view kPattern = "-#####-of-#####.gguf";
  if (path.size() <= kPattern.size() || path[path.size() - kPattern.size() - 1] == '/') return std::nullopt;
  SplitName name{path.substr(0, path.size() - kPattern.size())};
  int numbers[2] = {0, 0};
  for (std::size_t index = 0; index < kPattern.size(); ++index) {
    const char given = path[name.stem.size() + index];
    if (kPattern[index] != '#') {
      if (given != kPattern[index]) return std::nullopt;
      continue;
    }
    if (given < '0' || given > '9') return std::nullopt;
    int& number = numbers[index > 6];
    number = number * 10 + (given - '0');
  }
  name.part = numbers[0];
  name.count = numbers[1];
  return name;
}

std::string five_digits(int number) {
  const std::string digits = std::to_string(number);
  return std::string(5 - digits.size(), '0') + digits;
}

}  // namespace

std::vector<std::string> split_parts(const std::string& path) {
  const std::optional<SplitName> name = split_name(path);
  if (!name) return {path};
  if (name->part < 1 || name->part > name->count) {
    throw Error(ErrorKind::kCheckpoint, path + ": a part numbered " + std::to_string(name->part) + " of " +
                                            std::to_string(name->count) + ". Check the file's name.");
  }
  std::vector<std::string> parts;
  for (int part = 1; part <= name->count; ++part) {
    parts.push_back(name->stem + "-" + five_digits(part) + "-of-" + five_digits(name->count) + ".gguf");
  }
  return parts;
}

void check_split(std::span<const GgufFile> parts, std::span<const std::string> paths) {
  const auto num_parts = static_cast<std::int64_t>(parts.size());
  std::size_t num_tensors = 0;
  for (std::int64_t index = 0; index < num_parts; ++index) {
    const GgufFile& part = parts[static_cast<std::size_t>(index)];
    const std::string& path = paths[static_cast<std::size_t>(index)];
    const std::int64_t count = part.split_count.value_or(num_parts);
    const std::int64_t number = part.split_number.value_or(index);
    if (num_parts == 1 && count != 0 && count != 1) {
      throw Error(ErrorKind::kCheckpoint,
                  path + ": is part " + std::to_string(number) + " of a model split in " + std::to_string(count) +
                      ", but is not named like one. Restore the published names (name-00001-of-0000N.gguf) and keep "
                      "the parts together.");
    }
    if ((count != 0 && count != num_parts) || number != index) {
      throw Error(ErrorKind::kCheckpoint, path + ": says it is part " + std::to_string(number) + " of " +
                                              std::to_string(count) + ", and its name says " + std::to_string(index) +
                                              " of " + std::to_string(num_parts) + ". Fetch the parts again.");
    }
    num_tensors += part.tensors.size();
  }
  const std::int64_t announced = parts.front().split_tensors_count.value_or(static_cast<std::int64_t>(num_tensors));
  if (num_parts > 1 && announced != static_cast<std::int64_t>(num_tensors)) {
    throw Error(ErrorKind::kCheckpoint, paths.front() + ": announces " + std::to_string(announced) +
                                            " tensors and the parts hold " + std::to_string(num_tensors) +
                                            ". Fetch them again.");
  }
}

}  // namespace pocket
