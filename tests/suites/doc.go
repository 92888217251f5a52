// SPDX-License-Identifier: Apache-2.0

// Package suites runs test suites of others against the device in user space,
// and checks what docs/softroce-suites.md says of them.
package suites
