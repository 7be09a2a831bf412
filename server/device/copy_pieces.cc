// SPDX-License-Identifier: Apache-2.0
#include "server/device/copy_pieces.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace gemmd {
namespace {

// Copying so much takes about a millisecond.
constexpr size_t kMostInPart = size_t{4} << 20;

// What one thread copies at a time: a range of one long piece, or several whole pieces.
struct Part {
  size_t first = 0;  // Piece.
  size_t count = 0;
  size_t begin = 0;  // Within the piece, where it is not whole.
  size_t bytes = 0;
  size_t offset = 0;  // Where it goes.
  bool is_whole = true;
};

std::vector<Part> PartsOf(absl::Span<const Piece> pieces) {
  std::vector<Part> parts;
  size_t offset = 0;
  const auto add = [&](Part part) {
    part.offset = offset;
    offset += part.bytes;
    parts.push_back(part);
  };
  for (size_t i = 0; i < pieces.size();) {
    if (pieces[i].size() > kMostInPart) {
      for (size_t begin = 0; begin < pieces[i].size(); begin += kMostInPart) {
        add({.first = i,
             .count = 1,
             .begin = begin,
             .bytes = std::min(kMostInPart, pieces[i].size() - begin),
             .is_whole = false});
      }
      ++i;
      continue;
    }
    Part part = {.first = i};
    for (; i < pieces.size() && part.bytes + pieces[i].size() <= kMostInPart; ++i) {
      part.bytes += pieces[i].size();
      ++part.count;
    }
    add(part);
  }
  return parts;
}

void CopyPart(const Source& source, const Part& part, std::byte* to) {
  to += part.offset;
  if (!part.is_whole) {
    std::memcpy(to, source.pieces[part.first].data() + part.begin, part.bytes);
    return;
  }
  for (const Piece& piece : source.pieces.subspan(part.first, part.count)) {
    std::memcpy(to, piece.data(), piece.size());
    to += piece.size();
  }
  if (source.keeper != nullptr) source.keeper->LetGo(part.first, part.count);
}

// As many as the system gives.
void StartThreads(int count, const std::function<void()>& work, std::vector<std::thread>& threads) {
  if (count > 0) threads.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    try {
      threads.emplace_back(work);
    } catch (const std::system_error&) {
      return;
    } catch (const std::bad_alloc&) {
      return;
    }
  }
}

}  // namespace

bool CopyPieces(const Source& source, std::byte* to, int threads,
                absl::FunctionRef<bool()> is_aborted) {
  const std::vector<Part> parts = PartsOf(source.pieces);
  std::atomic<size_t> next = 0;
  std::atomic<bool> is_ended = false;
  const auto work = [&] {
    for (size_t i = next++; i < parts.size(); i = next++) {
      if (is_aborted()) is_ended = true;
      if (is_ended) return;
      CopyPart(source, parts[i], to);
    }
  };
  std::vector<std::thread> others;
  if (source.bytes >= kParallelCopyBytes) StartThreads(threads - 1, work, others);
  work();
  for (std::thread& other : others) other.join();
  return !is_ended;
}

}  // namespace gemmd
