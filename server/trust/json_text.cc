// SPDX-License-Identifier: Apache-2.0
#include "server/trust/json_text.h"

#include <yaml.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "kernels/matrix/invalid.h"
#include "kernels/matrix/status.h"

namespace gemmd {

namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 8;
constexpr size_t kMaxShownOfName = 64;

// Finds what nlohmann::json would accept silently.
class Examiner final : public nlohmann::json_sax<json> {
 public:
  explicit Examiner(std::string_view text) : text_(text) {}

  const std::string& problem() const { return problem_; }

  bool null() override { return Count(); }
  bool boolean(bool /*value*/) override { return Count(); }
  bool number_integer(number_integer_t /*value*/) override { return Count(); }
  bool number_unsigned(number_unsigned_t /*value*/) override { return Count(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return Count(); }
  bool string(string_t& /*value*/) override { return Count(); }
  bool binary(binary_t& /*value*/) override { return Count(); }

  bool start_object(size_t /*members*/) override { return Open(/*is_array=*/false); }
  bool end_object() override { return Close(); }
  bool start_array(size_t /*elements*/) override { return Open(/*is_array=*/true); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Level& object = levels_.back();
    object.name = name.substr(0, kMaxShownOfName);
    if (object.names.insert(name).second) return true;
    for (const Level& level : levels_) {
      level.is_array ? absl::StrAppend(&problem_, "[", level.elements - 1, "]")
                     : absl::StrAppend(&problem_, problem_.empty() ? "" : ".", level.name);
    }
    absl::StrAppend(&problem_, ": got it twice, want each name once");
    return false;
  }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    const std::string_view before = text_.substr(0, std::min(position, text_.size()));
    problem_ = absl::StrCat("line ", 1 + std::count(before.begin(), before.end(), '\n'),
                            ": got text that is not JSON, want JSON");
    return false;
  }

 private:
  // An unfinished object or list.
  struct Level {
    bool is_array;
    size_t elements = 0;
    std::string name = {};  // The latest name in an object.
    std::set<std::string> names = {};
  };

  bool Count() {
    if (!levels_.empty()) ++levels_.back().elements;
    return true;
  }

  bool Open(bool is_array) {
    Count();
    levels_.push_back({.is_array = is_array});
    if (levels_.size() <= kMaxDepth) return true;
    problem_ = absl::StrCat("got more than ", kMaxDepth, " levels, want fewer");
    return false;
  }

  bool Close() {
    levels_.pop_back();
    return true;
  }

  const std::string_view text_;
  std::vector<Level> levels_;
  std::string problem_;
};

// The value of an unquoted scalar.
json ValueOf(std::string text) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_number() || value.is_boolean() || value.is_null()) return value;
  return text.empty() ? json() : json(std::move(text));
}

class Reader {
 public:
  Reader(std::string_view what, std::string_view text) : what_(what) {
    yaml_parser_initialize(&parser_);
    // Otherwise a byte order mark could declare the text to be UTF-16.
    yaml_parser_set_encoding(&parser_, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser_, reinterpret_cast<const unsigned char*>(text.data()),
                                 text.size());
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { yaml_parser_delete(&parser_); }

  absl::StatusOr<json> Read() {
    bool is_over = false;
    while (!is_over) {
      yaml_event_t event = {};
      const absl::Cleanup free_memory = [&event] { yaml_event_delete(&event); };
      if (yaml_parser_parse(&parser_, &event) != 1) {
        const bool is_of_text = parser_.error == YAML_READER_ERROR;
        return Bad(is_of_text ? parser_.mark : parser_.problem_mark, "text that is not YAML",
                   "YAML");
      }
      is_over = event.type == YAML_STREAM_END_EVENT;
      RETURN_IF_ERROR(Take(event));
    }
    return std::move(document_);
  }

 private:
  // An unfinished object or list, and the name in an object that has no value yet.
  struct Open {
    json value;
    std::string name = {};
    bool has_name = false;
  };

  absl::Status Bad(const yaml_mark_t& mark, std::string_view got, std::string_view want) const {
    return Invalid(Concat(what_, ": line ", mark.line + 1, ", column ", mark.column + 1), got,
                   want);
  }

  absl::Status Take(const yaml_event_t& event) {
    switch (event.type) {
      case YAML_DOCUMENT_START_EVENT:
        if (++documents_ == 1) return absl::OkStatus();
        return Bad(event.start_mark, "a second document", "one");
      case YAML_ALIAS_EVENT: return Bad(event.start_mark, "an alias", "its value");
      case YAML_SCALAR_EVENT: return TakeScalar(event);
      case YAML_SEQUENCE_START_EVENT:
        return Begin(event, json::array(), event.data.sequence_start.anchor,
                     event.data.sequence_start.tag);
      case YAML_MAPPING_START_EVENT:
        return Begin(event, json::object(), event.data.mapping_start.anchor,
                     event.data.mapping_start.tag);
      case YAML_SEQUENCE_END_EVENT:
      case YAML_MAPPING_END_EVENT: {
        json value = std::move(open_.back().value);
        open_.pop_back();
        Add(std::move(value));
        return absl::OkStatus();
      }
      default: return absl::OkStatus();
    }
  }

  absl::Status CheckPlain(const yaml_event_t& event, const unsigned char* anchor,
                          const unsigned char* tag) const {
    if (anchor != nullptr) return Bad(event.start_mark, "an anchor", "none");
    if (tag != nullptr) return Bad(event.start_mark, "a tag", "none");
    return absl::OkStatus();
  }

  absl::Status Begin(const yaml_event_t& event, json value, const unsigned char* anchor,
                     const unsigned char* tag) {
    RETURN_IF_ERROR(CheckPlain(event, anchor, tag));
    if (AwaitsName()) return Bad(event.start_mark, "a name that is not a string", "text");
    if (open_.size() >= kMaxDepth) {
      return Bad(event.start_mark, absl::StrCat("more than ", kMaxDepth, " levels"), "fewer");
    }
    open_.push_back({.value = std::move(value)});
    return absl::OkStatus();
  }

  absl::Status TakeScalar(const yaml_event_t& event) {
    const auto& scalar = event.data.scalar;
    RETURN_IF_ERROR(CheckPlain(event, scalar.anchor, scalar.tag));
    std::string text(reinterpret_cast<const char*>(scalar.value), scalar.length);
    if (!AwaitsName()) {
      const bool is_plain = scalar.style == YAML_PLAIN_SCALAR_STYLE;
      Add(is_plain ? ValueOf(std::move(text)) : json(std::move(text)));
      return absl::OkStatus();
    }
    Open& object = open_.back();
    if (object.value.contains(text)) {
      return Bad(event.start_mark, absl::StrCat(text.substr(0, kMaxShownOfName), " twice"),
                 "each name once");
    }
    object.name = std::move(text);
    object.has_name = true;
    return absl::OkStatus();
  }

  bool AwaitsName() const {
    return !open_.empty() && open_.back().value.is_object() && !open_.back().has_name;
  }

  // Adds a value to the innermost unfinished object or list.
  void Add(json value) {
    if (open_.empty()) {
      document_ = std::move(value);
    } else if (open_.back().value.is_object()) {
      open_.back().value[open_.back().name] = std::move(value);
      open_.back().has_name = false;
    } else {
      open_.back().value.push_back(std::move(value));
    }
  }

  const std::string what_;
  yaml_parser_t parser_ = {};
  int documents_ = 0;
  std::vector<Open> open_;
  json document_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view what, std::string_view text, size_t max_bytes) {
  const std::string field(what);
  if (text.size() > max_bytes) {
    return Invalid(field, Concat(text.size(), " bytes"), Concat("at most ", max_bytes));
  }
  Examiner examiner(text);
  if (!json::sax_parse(text, &examiner)) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", examiner.problem()));
  }
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

absl::StatusOr<json> ParseYaml(std::string_view what, std::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return Invalid(what, Concat(text.size(), " bytes"), Concat("at most ", max_bytes));
  }
  return Reader(what, text).Read();
}

}  // namespace gemmd
