// SPDX-License-Identifier: Apache-2.0

// Package netlink sends requests to Linux's kernel by netlink(7).
//
// It uses only package syscall. A netlink library would become part of the
// module graph of every program that imports Verbena, and only a header, lists
// of attributes and a few kinds of messages are needed here.
package netlink
