// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"encoding/binary"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
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
	b := request(10, flagDump, 7, uint32Attribute{AttrDeviceIndex, 3})
	require.Equal(t, message(5<<10+10, 0x301, 7, attribute(AttrDeviceIndex, number(3)...)...), b)
}

func TestAnswers(t *testing.T) {
	one := attribute(AttrDeviceName, 'r', 'x', 'e', '0', 0)
	errno := func(e syscall.Errno) []byte { return number(uint32(-int32(e))) }
	for name, tt := range map[string]struct {
		received [][]byte
		messages int
		done     bool
		err      error
	}{
		"one message":            {[][]byte{message(client|cmdSysGet, 0, 9, one...)}, 1, true, nil},
		"list":                   {[][]byte{message(client|cmdGet, flagMulti, 9, one...), message(typeDone, flagMulti, 9, number(0)...)}, 1, true, nil},
		"several in one receive": {[][]byte{append(append(message(client|1, flagMulti, 9, one...), message(client|1, flagMulti, 9)...), message(typeDone, 2, 9, number(0)...)...)}, 2, true, nil},
		"more to come":           {[][]byte{message(client|1, flagMulti, 9, one...)}, 1, false, nil},
		"refused":                {[][]byte{message(typeError, 0, 9, errno(syscall.EPERM)...)}, 0, true, syscall.EPERM},
		"list that fails":        {[][]byte{message(client|1, flagMulti, 9, one...), message(typeDone, flagMulti, 9, errno(syscall.ENODEV)...)}, 1, true, syscall.ENODEV},
		"another's answer":       {[][]byte{message(typeError, 0, 8, errno(syscall.EPERM)...), message(client|1, 0, 9, one...)}, 1, true, nil},
		"half a header":          {[][]byte{make([]byte, messageHeader-1)}, 0, false, errShort},
		"too long":               {[][]byte{message(client|1, 0, 9, one...)[:24]}, 0, false, errShort},
		"no length":              {[][]byte{make([]byte, messageHeader)}, 0, false, errShort},
		"half an attribute":      {[][]byte{message(client|1, 0, 9, 8, 0, 1)}, 0, false, errShort},
		"error without number":   {[][]byte{message(typeError, 0, 9, 1)}, 0, true, errShort},
		"error that is none":     {[][]byte{message(typeError, 0, 9, number(5)...)}, 0, true, errShort},
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
				require.Equal(t, "rxe0", m.String(AttrDeviceName))
			}
		})
	}
}

func TestAttributes(t *testing.T) {
	eight := binary.NativeEndian.AppendUint64(nil, 1<<40)
	qp := func(n uint32) []byte { return attribute(QueuePairs.entry, attribute(AttrLocalQPN, number(n)...)...) }
	body := append(attribute(AttrType, 4), attribute(AttrUses, eight...)...)
	body = append(body, attribute(1<<15|QueuePairs.table, append(qp(17), qp(18)...)...)...)
	body = append(body, attribute(AttrKernelName)...)
	a, err := parse(body)
	require.NoError(t, err)

	kind, is := a.Uint8(AttrType)
	require.True(t, is)
	require.Equal(t, uint8(4), kind)
	uses, is := a.Uint64(AttrUses)
	require.True(t, is)
	require.Equal(t, uint64(1<<40), uses)
	for _, absent := range []uint16{AttrPID, AttrType} { // not there, and too short
		_, is = a.Uint32(absent)
		require.False(t, is)
		_, is = a.Uint64(absent)
		require.False(t, is)
	}
	_, is = a.Uint8(AttrPID)
	require.False(t, is)
	require.Empty(t, a.String(AttrKernelName))
	require.Empty(t, a.String(AttrPID))
	require.Nil(t, a.Bytes(AttrPID))
	require.Len(t, a.Bytes(AttrUses), 8)

	var numbers []uint32
	for object, err := range a.entries(QueuePairs.table, QueuePairs.entry) {
		require.NoError(t, err)
		n, _ := object.Uint32(AttrLocalQPN)
		numbers = append(numbers, n)
	}
	require.Equal(t, []uint32{17, 18}, numbers)

	a = Attributes{QueuePairs.table: {{1, 2, 3}}}
	for _, err := range a.entries(QueuePairs.table, QueuePairs.entry) {
		require.ErrorIs(t, err, errShort)
	}
}

// Whatever comes, nothing panics, and no attribute is longer than what came.
func FuzzAnswers(f *testing.F) {
	qp := attribute(QueuePairs.entry, append(attribute(AttrLocalQPN, number(17)...), attribute(AttrKernelName, 'x', 0)...)...)
	f.Add(message(client|10, flagMulti, 1, attribute(QueuePairs.table, qp...)...))
	f.Add(message(typeDone, flagMulti, 1, number(0)...))
	f.Add(message(typeError, 0, 1, number(uint32(0xFFFFFFFF))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		a := answers{sequence: 1}
		_, _ = a.add(b)
		for _, m := range a.messages {
			for kind := range m {
				require.LessOrEqual(t, len(m.Bytes(kind)), len(b))
				_, _ = m.Uint64(kind)
				require.NotContains(t, m.String(kind), "\x00")
			}
			for object, err := range m.entries(QueuePairs.table, QueuePairs.entry) {
				if err == nil {
					_, _ = object.Uint32(AttrLocalQPN)
				}
			}
		}
	})
}

// The kernel says which devices there are, or that it has no RDMA.
func TestConn(t *testing.T) {
	c, err := Open()
	if err != nil {
		t.Skip("no RDMA in this kernel: ", err)
	}
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	devices, err := c.Devices()
	require.NoError(t, err)
	t.Log(devices)
	objects, err := c.Objects(Device{1 << 30, "gone"}, QueuePairs)
	require.NoError(t, err, "a device that is not there any more")
	require.Empty(t, objects)
	_, err = c.ask(1000, 0)
	require.Error(t, err)
	_, err = c.SharedNamespaces()
	require.NoError(t, err)
}
