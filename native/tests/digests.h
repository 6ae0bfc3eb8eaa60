// What scalar must give, on every machine and from every compiler.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

// Whether the words of the made-up layer of this name are those written down; true at positions of which none are. Says
// on a line which digest they have.
bool check_digest(const std::string& name, int positions, const std::vector<std::uint32_t>& words);
