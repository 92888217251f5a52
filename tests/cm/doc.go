// SPDX-License-Identifier: Apache-2.0

// Package cm tests rdmacm over C libraries of its own
// (internal/testutil/fakelib), where every call can fail in every way, and
// every event can come.
package cm
