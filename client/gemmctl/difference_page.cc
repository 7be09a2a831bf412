// SPDX-License-Identifier: Apache-2.0
//
// DifferencesPage of difference_drawing.h.
#include "absl/strings/str_cat.h"
#include "client/gemmctl/difference_drawing.h"
#include "client/terminal/markup.h"

namespace gemmd {
namespace {

constexpr char kHead[] =
    "<!DOCTYPE html>\n"
    "<html lang=\"en\">\n"
    "<meta charset=\"utf-8\">\n"
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
    "<title>gemmctl diff</title>\n"
    "<style>\n"
    "body { font-family: sans-serif; margin: 1em; }\n"
    "svg { max-width: 100%; height: auto; }\n"
    "pre { overflow-x: auto; }\n"
    "</style>\n";

}  // namespace

std::string DifferencesPage(const std::vector<NamedDifference>& all) {
  std::string page = absl::StrCat(kHead, "<body>\n", DifferencesSvg(all));
  for (const NamedDifference& named : all) {
    absl::StrAppend(&page, "<pre>\n", EscapedMarkup(DifferenceText(named)), "</pre>\n");
  }
  return page + "</body>\n</html>\n";
}

}  // namespace gemmd
