// SPDX-License-Identifier: Apache-2.0

package rsocket_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rsocket"
)

// A device that has no immediate data, and does not use iWARP, is named as the
// reason why nothing can be written.
func TestNoImmediateData(t *testing.T) {
	if !testdevice.LimitedTo(t, "imm=0") {
		return
	}
	client, _ := pair(t, rsocket.Config{}, rsocket.Config{})
	_, err := client.Write([]byte("hello"))
	require.ErrorContains(t, err, "rsocket needs RDMA writes with immediate data, which the device refuses")
}
