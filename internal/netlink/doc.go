// SPDX-License-Identifier: Apache-2.0

// Package netlink asks Linux's kernel by netlink(7).
//
// It uses only package syscall. A netlink library would become part of the
// module graph of every program that imports Verbena. What is needed here is
// only a header, a list of attributes and a few kinds of messages.
package netlink
