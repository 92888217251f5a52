// SPDX-License-Identifier: Apache-2.0

// Package provider proves what package ibverbs asks of a device that supports
// everything, on the one of internal/testutil/fakelib: every argument that C
// sees, and what becomes of every result. None of it needs hardware.
package provider
