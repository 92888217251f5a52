// SPDX-License-Identifier: Apache-2.0

// Package diff compares two snapshots of the headers and says what each change
// does to programs that were written, or compiled, for the old one.
//
// A change is one of four:
//
//   - an ABI break: a program that was compiled with the old headers can fail
//     with a library of the new version;
//   - undecided: it is an ABI break or none, which the headers do not tell;
//   - a source break: such a program goes on working, but might not compile
//     with the new headers;
//   - compatible: neither.
//
// The rules, with what they rest on:
//
//   - A header that is added is compatible; one that is gone breaks the source
//     of programs that include it.
//   - A function that is added is compatible, whether exported or inline. One
//     that is removed is a break if it was exported and the library does not
//     export it under its node any more; while it does, programs start, and
//     only the source breaks. A snapshot that was made without the libraries
//     does not tell, and counts as one whose library does not. An inline
//     function was compiled into the program, so its removal breaks the source
//     only, and a change of its body nothing; that is compatible. An exported
//     one that turns inline is a break unless the library still exports it. One
//     that turns from inline to exported is compatible.
//   - An ELF version node that changes or is lost is a break: the program asks
//     for the symbol with the node that it was linked with. A snapshot in which
//     no function has a node was made without the libraries and says nothing.
//   - A prototype that changes is a break, unless only const or the name of a
//     scalar changed and every value is passed as before; see samePassed.
//   - An enumerator or macro with another value is a break, because the old
//     value is compiled in. A removed one breaks the source. An enum that turns
//     signed or unsigned changes comparisons, but no stored value: source.
//   - A struct may gain members in its padding and at its end. Members that
//     move, vanish, or change to a type of another form are breaks, and so are
//     a smaller size, another alignment, and a struct that turns opaque.
//   - A struct that grows at its end is a break where that is visible: if it is
//     passed by value, or held in an array. Programs also have arrays of it
//     where a function, or another struct, has a pointer to it beside a number
//     of elements, which the names of both tell: sg_list and num_sge. Not if an
//     exported function returns it, since the library then allocates each by
//     itself, nor if the function is told the size. If other members follow it
//     in another struct, these move, which is a break of that struct. For all
//     others, the headers do not say whether a caller allocates them: with a
//     comp_mask that is safe, without one it is undecided.
//   - A struct that grows at its front is compatible if all of its members keep
//     their types and their distances from its end, the last one included, and
//     if no exported function and no member of a struct refers to it. Then a
//     program can have found it only from the address of its last member, with
//     an offset that was compiled in. So it is with struct verbs_context, which
//     is found from the struct ibv_context at its end.
//   - A member with another name at the same place and of the same form breaks
//     the source. A member with "reserved" in its name only holds space: it may
//     shrink and move, and breaks the source if it vanishes.
//   - A bit-field with another first bit or width is a break. A change of what
//     the header says about a layout, such as packed, is named; what it moves
//     is a change of its own, and so is another size or alignment.
//   - A typedef or variable that is added is compatible. A removed typedef
//     breaks the source, a removed variable is a break. One of another type is
//     a break, unless its values are stored, and for a typedef passed, as
//     before. A struct of which the library has a variable cannot grow:
//     programs reserve room for the variable as they were compiled.
//   - A struct, union or enum that gets a tag, or loses it, breaks the source.
//     An enum of another size is a break.
//   - A member that an anonymous union takes in, or gives free, is where it
//     was, and C programs write it as before. Go's field turns into a method,
//     or back, so that is a break of the source.
//   - A declaration that is in another header now breaks the source of programs
//     that include the old one only.
//
// Of an inline function's body, and of a macro without a value, a snapshot has
// a digest. It tells that something changed, and not what.
//
// Enumerators are compared by name, whatever enum they are in, as C has one
// name space for all; so enums without a tag need no name of their own.
package diff
