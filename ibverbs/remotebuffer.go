// SPDX-License-Identifier: Apache-2.0

package ibverbs

import (
	"encoding/binary"

	"github.com/verbena-go/verbena/internal/cerr"
)

// RemoteBufferSize is the size of a RemoteBuffer in binary form, in bytes.
const RemoteBufferSize = 20

// AppendBinary appends the buffer in the form in which programs exchange it, in
// private data or a message: Addr, RKey and Len in network byte order. It fails
// for a result of Sub that is outside the buffer it came from.
func (r RemoteBuffer) AppendBinary(b []byte) ([]byte, error) {
	if err := r.check(); err != nil {
		return b, cerr.Argument("RemoteBuffer.AppendBinary", "", err)
	}
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint64(b, r.Len), nil
}

// MarshalBinary returns the buffer in the form of AppendBinary, and fails if
// AppendBinary fails.
func (r RemoteBuffer) MarshalBinary() ([]byte, error) {
	b, err := r.AppendBinary(make([]byte, 0, RemoteBufferSize))
	if err != nil {
		return nil, err
	}
	return b, nil
}

// UnmarshalBinary reads the buffer from the first RemoteBufferSize bytes of b
// and ignores the rest, such as the zeros after private data. It does not check
// the values, which come from the peer: the peer's device checks each access.
func (r *RemoteBuffer) UnmarshalBinary(b []byte) error {
	if len(b) < RemoteBufferSize {
		return cerr.Refuse("RemoteBuffer.UnmarshalBinary", "", "b has %d bytes, fewer than the %d of a remote buffer", len(b), RemoteBufferSize)
	}
	*r = RemoteBuffer{
		Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]), Len: binary.BigEndian.Uint64(b[12:]),
	}
	return nil
}
