// SPDX-License-Identifier: Apache-2.0

package valkeyrdma

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// rdmacm takes no request back because the server is busy.
func TestDialHasNoHandshakeTimeout(t *testing.T) {
	require.Negative(t, new(Dialer).rdma(nil).Config.HandshakeTimeout)
}
