// SPDX-License-Identifier: Apache-2.0

package rdmacm_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/cmtest"
)

// The examples with both ends do what they say. Their address is that of the
// guest of tests/vm.
func TestExample(t *testing.T) {
	needDevice(t)
	needGuest(t)
	require.Equal(t, "hello over RDMA\n", cmtest.Printed(t, Example))
	require.Equal(t, "hello over RDMA\nhello over RDMA\n", cmtest.Printed(t, ExamplePool))
	require.Equal(t, "hello yourself\n", cmtest.Printed(t, ExampleDialDatagram))
	require.Equal(t, "to all members, from 192.0.2.1\n", cmtest.Printed(t, ExampleJoinGroup))
	// The client closes its end some time later.
	require.Eventually(t, func() bool { return len(ibverbs.OpenObjects()) == 0 }, patience, time.Millisecond)
}
