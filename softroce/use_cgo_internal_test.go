// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo && (amd64 || arm64 || loong64 || ppc64le || riscv64 || s390x)

package softroce

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/softroce/internal/wire"
)

// A program may send datagrams to the connection manager's queue pair, and they
// need not be its messages.
func TestDatagramsToQueuePair1(t *testing.T) {
	message := make([]byte, wire.MADLen)
	for name, payload := range map[string][][]byte{
		"empty": nil, "short": {{1}}, "segments": {message[:100], message[100:]}, "no message": {message},
	} {
		require.Equal(t, KindSend, kindOf(&wire.Packet{Opcode: wire.UDSendOnly, DestQP: wire.GSI, Payload: payload}), name)
	}
}
