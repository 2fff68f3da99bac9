// Text from outside, made fit for a message: one line, of bounded length,
// without control characters.
//
// Names in a checkpoint are chosen by whoever made the file, and those of
// owners by the program. Put into a message as they are, they could forge
// further lines, move a terminal's cursor or fill a log.

#ifndef QUIRE_ALLOC_QUOTE_H_
#define QUIRE_ALLOC_QUOTE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace quire {

// Printable UTF-8 stays as it is; control characters, line and paragraph
// separators, marks that change the writing direction and bytes that are no
// UTF-8 become escapes (\n, \x1b, \u202e). At most about `limit` bytes, then
// "...".
std::string Printable(std::string_view text, size_t limit = 4096);

// The same between double quotes, for names: "model.norm.weight".
std::string Quoted(std::string_view text);

}  // namespace quire

#endif  // QUIRE_ALLOC_QUOTE_H_
