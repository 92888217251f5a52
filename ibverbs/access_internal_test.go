// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAccessProblem(t *testing.T) {
	for access, want := range map[AccessFlags]string{
		0:                                       "",
		AccessLocalWrite:                        "",
		AccessRemoteRead:                        "",
		AccessRemoteRead | AccessWindowBind:     "",
		AccessRemoteWrite | AccessLocalWrite:    "",
		AccessRemoteAtomic | AccessLocalWrite:   "",
		AccessOnDemand | AccessHugeTLB:          "",
		AccessRelaxedOrdering:                   "",
		AccessFlushGlobal:                       "",
		AccessFlushPersistent | AccessZeroBased: "",
		1 << 29:                                 "", // of the optional range
		AccessRemoteWrite:                       "AccessRemoteWrite without AccessLocalWrite",
		AccessRemoteAtomic:                      "AccessRemoteAtomic without AccessLocalWrite",
		AccessRemoteAtomic | AccessRemoteRead:   "AccessRemoteAtomic without AccessLocalWrite",
		AccessRemoteAtomic | AccessRemoteWrite:  "AccessRemoteWrite without AccessLocalWrite",
		AccessHugeTLB:                           "AccessHugeTLB without AccessOnDemand",
		1 << 10:                                 "unknown access flags 0x400",
		1<<30 | 1<<31 | AccessLocalWrite:        "unknown access flags 0xc0000000",
	} {
		require.Equal(t, want, accessProblem(access), access)
	}
}

func TestAccessName(t *testing.T) {
	require.Equal(t, "AccessOnDemand", accessName(AccessOnDemand))
	require.Equal(t, "AccessRemoteWrite", accessName(AccessRemoteAtomic|AccessRemoteWrite))
	require.Equal(t, (AccessFlags(1) << 25).String(), accessName(1<<25))
}
