// SPDX-License-Identifier: Apache-2.0

// Package versions runs one compiled program against several versions of
// rdma-core, each in a root of its own, in tests/vm's guest:
//
//	scripts/fetch-roots
//	go test -v -exec "$PWD/tests/vm/rdma-vm" ./tests/versions
//
// Without its root, a version is skipped; VERBENA_REQUIRE_ROOTS=1 makes that a
// failure.
package versions
