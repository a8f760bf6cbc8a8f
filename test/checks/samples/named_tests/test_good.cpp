// SPDX-License-Identifier: BSD-3-Clause
//
// What the documents beside it name.
TEST(thing, does_it)
TEST_P(thing_with_a_long_name,
       does_it_in_a_sentence_that_begins_a_line_of_its_own)
