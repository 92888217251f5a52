// SPDX-License-Identifier: Apache-2.0

// Package netlink asks Linux's kernel by netlink(7).
//
// It does so with the syscall package alone, because everybody who imports
// Verbena would get a netlink library into the graph of modules, for what is a
// header, a list of attributes and a few kinds of message here.
package netlink
