#include "model/cli/usage_error.h"

#include <CLI/Option.hpp>
#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quire {
namespace {

// Letters to insert, to take away or to replace. O(size of both).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// "; did you mean 'generate'?" Nothing where no word is near: at most a third
// of its letters may be wrong.
std::string Suggest(const std::string& word,
                    const std::vector<std::string>& known) {
  const auto nearest =
      std::min_element(known.begin(), known.end(),
                       [&](const std::string& a, const std::string& b) {
                         return EditDistance(word, a) < EditDistance(word, b);
                       });
  if (nearest == known.end() ||
      EditDistance(word, *nearest) > std::max(word.size(), nearest->size()) / 3)
    return "";
  return absl::StrCat("; did you mean '", *nearest, "'?");
}

std::vector<std::string> VerbsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* const verb :
       app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  return names;
}

std::vector<std::string> OptionsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : app.get_options())
    for (const std::string& name : option->get_lnames())
      names.push_back("--" + name);
  return names;
}

// The last verb that was read.
const CLI::App& DeepestVerb(const CLI::App& app) {
  const std::vector<CLI::App*> parsed = app.get_subcommands();
  return parsed.empty() ? app : DeepestVerb(*parsed.back());
}

}  // namespace

std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error) {
  const CLI::App& verb = DeepestVerb(app);
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  const std::vector<std::string> verbs = VerbsOf(verb);
  if (!verbs.empty() && error.get_name() == "RequiredError") {
    const std::string there_are =
        absl::StrCat("there are: ", absl::StrJoin(verbs, ", "));
    if (left.empty()) return absl::StrCat("a verb is missing; ", there_are);
    if (!left.front().starts_with('-'))
      return absl::StrCat("'", left.front(), "' is no verb",
                          Suggest(left.front(), verbs), "; ", there_are);
  }
  if (!left.empty() && left.front().starts_with('-')) {
    const std::string name = left.front().substr(0, left.front().find('='));
    return absl::StrCat("there is no option ", name,
                        Suggest(name, OptionsOf(verb)));
  }
  return error.what();
}

}  // namespace quire
