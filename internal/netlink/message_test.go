// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A kind of message, and attributes.
const (
	answer = 5<<10 + 10

	index  = 1
	text   = 2
	empty  = 3
	small  = 4
	large  = 5
	absent = 6
	table  = 7
	entry  = 8
)

// attribute returns an attribute as it goes over the wire.
func attribute(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(attributeHeader+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, align(len(b))-len(b))...)
}

func number(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

// message returns a message as it goes over the wire.
func message(kind, flags uint16, sequence uint32, body ...byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(messageHeader+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, sequence)
	b = append(b, 0, 0, 0, 0)
	return append(b, body...)
}

func TestRequest(t *testing.T) {
	body := Append(Append(nil, index, number(3)), text, []byte("rxe0\x00"))
	require.Equal(t, append(attribute(index, number(3)...), attribute(text, 'r', 'x', 'e', '0', 0)...), body)
	require.Equal(t, message(answer, 0x301, 7, body...), request(answer, Dump, 7, body))
	require.Equal(t, message(answer, 1, 8), request(answer, 0, 8, nil))
}

func TestAnswers(t *testing.T) {
	one := attribute(text, 'r', 'x', 'e', '0', 0)
	errno := func(e syscall.Errno) []byte { return number(uint32(-int32(e))) }
	for name, tt := range map[string]struct {
		received [][]byte
		messages int
		done     bool
		err      error
	}{
		"one message":            {[][]byte{message(answer, 0, 9, one...)}, 1, true, nil},
		"list":                   {[][]byte{message(answer, flagMulti, 9, one...), message(typeDone, flagMulti, 9, number(0)...)}, 1, true, nil},
		"several in one receive": {[][]byte{append(append(message(answer, flagMulti, 9, one...), message(answer, flagMulti, 9)...), message(typeDone, 2, 9, number(0)...)...)}, 2, true, nil},
		"more to come":           {[][]byte{message(answer, flagMulti, 9, one...)}, 1, false, nil},
		"refused":                {[][]byte{message(typeError, 0, 9, errno(syscall.EPERM)...)}, 0, true, syscall.EPERM},
		"list that fails":        {[][]byte{message(answer, flagMulti, 9, one...), message(typeDone, flagMulti, 9, errno(syscall.ENODEV)...)}, 1, true, syscall.ENODEV},
		"another's answer":       {[][]byte{message(typeError, 0, 8, errno(syscall.EPERM)...), message(answer, 0, 9, one...)}, 1, true, nil},
		"half a header":          {[][]byte{make([]byte, messageHeader-1)}, 0, false, ErrShort},
		"too long":               {[][]byte{message(answer, 0, 9, one...)[:24]}, 0, false, ErrShort},
		"no length":              {[][]byte{make([]byte, messageHeader)}, 0, false, ErrShort},
		"error without number":   {[][]byte{message(typeError, 0, 9, 1)}, 0, true, ErrShort},
		"error that is none":     {[][]byte{message(typeError, 0, 9, number(5)...)}, 0, true, ErrShort},
	} {
		t.Run(name, func(t *testing.T) {
			a := answers{sequence: 9}
			var done bool
			var err error
			for _, b := range tt.received {
				require.False(t, done)
				if done, err = a.add(b); err != nil {
					break
				}
			}
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.done, done)
			require.Len(t, a.messages, tt.messages)
			for _, m := range a.messages[:min(len(a.messages), 1)] {
				attributes, err := Parse(m)
				require.NoError(t, err)
				require.Equal(t, "rxe0", attributes.String(text))
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	eight := binary.NativeEndian.AppendUint64(nil, 1<<40)
	qp := func(n uint32) []byte { return attribute(entry, attribute(index, number(n)...)...) }
	body := append(attribute(small, 4), attribute(large, eight...)...)
	body = append(body, attribute(1<<15|table, append(qp(17), qp(18)...)...)...)
	body = append(body, attribute(empty)...)
	a, err := Parse(body)
	require.NoError(t, err)

	kind, is := a.Uint8(small)
	require.True(t, is)
	require.Equal(t, uint8(4), kind)
	uses, is := a.Uint64(large)
	require.True(t, is)
	require.Equal(t, uint64(1<<40), uses)
	for _, absent := range []uint16{absent, small} { // not there, and too short
		_, is = a.Uint32(absent)
		require.False(t, is)
		_, is = a.Uint64(absent)
		require.False(t, is)
	}
	_, is = a.Uint8(absent)
	require.False(t, is)
	require.Empty(t, a.String(empty))
	require.Empty(t, a.String(absent))
	require.Nil(t, a.Bytes(absent))
	require.Len(t, a.Bytes(large), 8)

	var numbers []uint32
	for object, err := range a.Entries(table, entry) {
		require.NoError(t, err)
		n, _ := object.Uint32(index)
		numbers = append(numbers, n)
	}
	require.Equal(t, []uint32{17, 18}, numbers)

	_, err = Parse([]byte{8, 0, 1})
	require.ErrorIs(t, err, ErrShort)
	a = Attributes{table: {{1, 2, 3}}}
	for _, err := range a.Entries(table, entry) {
		require.ErrorIs(t, err, ErrShort)
	}
}

// Whatever comes, nothing panics, and no attribute is longer than what came.
func FuzzAnswers(f *testing.F) {
	qp := attribute(entry, append(attribute(index, number(17)...), attribute(empty, 'x', 0)...)...)
	f.Add(message(answer, flagMulti, 1, attribute(table, qp...)...))
	f.Add(message(typeDone, flagMulti, 1, number(0)...))
	f.Add(message(typeError, 0, 1, number(uint32(0xFFFFFFFF))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		a := answers{sequence: 1}
		_, _ = a.add(b)
		for _, body := range a.messages {
			m, _ := Parse(body)
			for kind := range m {
				require.LessOrEqual(t, len(m.Bytes(kind)), len(b))
				_, _ = m.Uint64(kind)
				require.NotContains(t, m.String(kind), "\x00")
			}
			for object, err := range m.Entries(table, entry) {
				if err == nil {
					_, _ = object.Uint32(index)
				}
			}
		}
	})
}
