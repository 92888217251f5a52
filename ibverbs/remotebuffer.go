package ibverbs

import (
	"encoding/binary"

	"github.com/verbena-go/verbena/internal/cerr"
)

// RemoteBufferSize is how many bytes a RemoteBuffer has in its binary form.
const RemoteBufferSize = 20

// AppendBinary appends the buffer in the form in which programs tell each other
// of it, in private data or a message: Addr, RKey and Len in network byte order.
// It does not fail.
func (r RemoteBuffer) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.RKey)
	return binary.BigEndian.AppendUint64(b, r.Len), nil
}

// MarshalBinary returns what AppendBinary appends. It does not fail.
func (r RemoteBuffer) MarshalBinary() ([]byte, error) {
	return r.AppendBinary(make([]byte, 0, RemoteBufferSize))
}

// UnmarshalBinary takes the buffer from the first RemoteBufferSize bytes. What
// follows does not count, such as the zeros after private data. The peer may have
// written anything there: its device checks what is done with the buffer.
func (r *RemoteBuffer) UnmarshalBinary(b []byte) error {
	if len(b) < RemoteBufferSize {
		return cerr.Refuse("RemoteBuffer.UnmarshalBinary", "", "%d bytes, and a remote buffer has %d", len(b), RemoteBufferSize)
	}
	*r = RemoteBuffer{
		Addr: binary.BigEndian.Uint64(b), RKey: binary.BigEndian.Uint32(b[8:]), Len: binary.BigEndian.Uint64(b[12:]),
	}
	return nil
}
