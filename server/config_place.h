// SPDX-License-Identifier: Apache-2.0
//
// What CLI11 does not tell of a mistake: where in a configuration file it is, and which option's
// name is like one that there is not.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class ConfigError;
class ExtrasError;
}  // namespace CLI

namespace gemmd {

// Which line of the file that --config names gives which option.
class ConfigPlaces {
 public:
  ConfigPlaces() = default;  // There is no file.

  // Options that are on the command line are not of the file: they are taken from there.
  ConfigPlaces(const CLI::App& app, int argc, const char* const* argv);

  // "FILE:LINE: " where a message is about an option of the file: "--grace: got soon, want ...",
  // "tls-cert: got ...", or CLI11's own words; otherwise empty. Of several lines of an option the
  // one whose value the message says it got, or else the first.
  std::string Of(std::string_view message) const;

 private:
  struct Line {
    int number = 0;
    std::string option;  // Or the name of a section.
    std::string value;
  };

  std::string path_;
  std::vector<Line> lines_;
};

// What is wrong with a value, where, without the option's name a second time.
std::string TextOf(const ConfigPlaces& places, const std::string& text);

// What is wrong with a file that names an option that there is not, where, and which names are like
// it.
std::string TextOf(const CLI::App& app, const CLI::ConfigError& mistake,
                   const ConfigPlaces& places);

// The same for a command line that has an option that there is not; CLI11's own text where what is
// left over is no option.
std::string TextOf(const CLI::App& app, const CLI::ExtrasError& mistake);

}  // namespace gemmd
