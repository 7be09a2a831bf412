// SPDX-License-Identifier: Apache-2.0
#include "kernels/bench/shape.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "kernels/text.h"

namespace gemmd::bench {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::optional<int64_t> ParseExtent(std::string_view text) {
  int64_t extent = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, extent);
  if (error != std::errc() || rest != end || extent < 1) return std::nullopt;
  return extent;
}

std::optional<Shape> ParseShape(std::string_view text) {
  const size_t star = text.find('*');
  if (star != std::string_view::npos) {
    const std::optional<int64_t> batch = ParseExtent(text.substr(0, star));
    std::optional<Shape> shape = ParseShape(text.substr(star + 1));
    if (!batch || !shape || shape->batch != 1) return std::nullopt;
    shape->batch = *batch;
    return shape;
  }
  std::vector<int64_t> extents;
  for (const std::string_view part : Split(text, 'x')) {
    const std::optional<int64_t> extent = ParseExtent(part);
    if (!extent) return std::nullopt;
    extents.push_back(*extent);
  }
  if (extents.size() == 1) return Shape{extents[0], extents[0], extents[0]};
  if (extents.size() == 3) return Shape{extents[0], extents[1], extents[2]};
  return std::nullopt;
}

}  // namespace

std::string NameOf(const Shape& shape) {
  const std::string matrices = shape.batch > 1 ? Concat(shape.batch, "*") : "";
  return Concat(matrices, shape.m, "x", shape.n, "x", shape.k);
}

std::vector<Shape> Suite() {
  return {{512, 512, 512},    {1024, 1024, 1024}, {2048, 2048, 2048}, {4096, 4096, 4096},
          {8192, 8192, 8192}, {16, 8192, 8192},   {64, 8192, 8192},   {8192, 8192, 512},
          {512, 512, 32768},  {4095, 4097, 4093}};
}

absl::StatusOr<std::vector<Shape>> ParseShapes(std::string_view text) {
  std::vector<Shape> shapes;
  const auto add = [&shapes](const Shape& shape) {
    if (std::find(shapes.begin(), shapes.end(), shape) == shapes.end()) shapes.push_back(shape);
  };
  for (const std::string_view part : Split(text, ',')) {
    if (part == "suite") {
      for (const Shape& shape : Suite()) add(shape);
    } else if (const std::optional<Shape> shape = ParseShape(part)) {
      add(*shape);
    } else {
      return absl::InvalidArgumentError(GotWant(
          "--shapes", part, "N, MxNxK, BATCH*N or BATCH*MxNxK with numbers above 0, or suite"));
    }
  }
  return shapes;
}

}  // namespace gemmd::bench
