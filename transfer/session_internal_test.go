// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// While this end asks the peer to destroy its end of a connection, the peer
// cannot use the number of the connection again: what it then said of one would
// be taken for the other.
func TestNumbersOfLostConnections(t *testing.T) {
	s := &session{peer: new(Peer), paths: map[uint32]*path{}, fences: map[uint32][]slice{7: {{}}}}
	s.ctx, s.cancel = t.Context(), func() {}
	_, _, err := s.reservePath(7, &device{domain: new(domain)})
	require.ErrorIs(t, err, errProtocol)
	_, _, err = s.reservePath(8, &device{domain: new(domain)})
	require.NoError(t, err)
}
