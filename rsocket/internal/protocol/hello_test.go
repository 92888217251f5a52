// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/hex"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	require.NoError(t, err)
	return b
}

// The private data of a C program with its defaults, and of others.
func TestHello(t *testing.T) {
	const (
		table  = "00007f0011223300 01020304 00000002"
		buffer = "00007f0011224400 05060708 00010000"
	)
	tables := Region{0x7f0011223300, 0x01020304, 2}
	buffers := Region{0x7f0011224400, 0x05060708, 0x10000}
	for name, c := range map[string]struct {
		bytes string
		hello Hello
	}{
		"defaults":   {"01 02 0180 000000 00" + table + buffer, Hello{Credits: 384, Table: tables, Buffer: buffers}},
		"big-endian": {"01 03 0010 000000 00" + table + buffer, Hello{BigEndian: true, Credits: 16, Table: tables, Buffer: buffers}},
		"iomap":      {"01 02 0180 000000 80" + table + buffer, Hello{Credits: 384, IOMap: 128, Table: tables, Buffer: buffers}},
		"big iomap":  {"01 02 0180 000000 ff" + table + buffer, Hello{Credits: 384, IOMap: 32512, Table: tables, Buffer: buffers}},
	} {
		t.Run(name, func(t *testing.T) {
			data := unhex(t, c.bytes)
			got, err := ParseHello(append(data, make([]byte, 16)...)) // as the transport pads it
			require.NoError(t, err)
			require.Equal(t, c.hello, got)
			require.Equal(t, data, c.hello.Marshal())
		})
	}
	got, err := ParseHello(unhex(t, "01 00 0180 ffffff 05"+table+buffer))
	require.NoError(t, err)
	require.Zero(t, got.IOMap, "without the flag")
}

func TestBadHello(t *testing.T) {
	good := Hello{Credits: 384, Table: Region{1, 2, 2}, Buffer: Region{3, 4, 5}}
	change := func(i int, b ...byte) []byte {
		data := good.Marshal()
		copy(data[i:], b)
		return data
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"nothing":         {nil, syscall.EPROTO},
		"short":           {good.Marshal()[:39], syscall.EPROTO},
		"version 0":       {change(0, 0), syscall.ENOTSUP},
		"version 2":       {change(0, 2), syscall.ENOTSUP},
		"no credits":      {change(2, 0, 0), syscall.EPROTO},
		"one entry":       {change(20, 0, 0, 0, 1), syscall.EPROTO},
		"too many":        {change(20, 0xff, 0xff, 0xff, 0xff), syscall.EPROTO},
		"all zeros":       {make([]byte, 196), syscall.ENOTSUP},
		"without a table": {change(20, 0, 0, 0, 0), syscall.EPROTO},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseHello(c.data)
			require.ErrorIs(t, err, c.want)
		})
	}
}

func TestWords(t *testing.T) {
	for _, c := range []struct {
		word  Word
		bits  uint32
		kind  Kind
		value int
		text  string
	}{
		{Data(100), 0x00000064, KindData, 100, "DATA of 100 bytes"},
		{Data(MaxData), 0x1fffffff, KindData, MaxData, "DATA of 536870911 bytes"},
		{Update(384), 0x80000180, KindUpdate, 384, "SGL with limit 384"},
		{Update(0xffff), 0x8000ffff, KindUpdate, 0xffff, "SGL with limit 65535"},
		{Word(0xc0000003), 0xc0000003, KindIOMap, 3, "IOMAP_SGL of entry 3"},
		{Disconnect, 0xe0000000, KindControl, 0, "DISCONNECT"},
		{KeepAlive, 0xe0000001, KindControl, 1, "KEEPALIVE"},
		{Shutdown, 0xe0000002, KindControl, 2, "SHUTDOWN"},
		{Word(0x20000001), 0x20000001, 1, 1, "word 0x20000001"},
	} {
		require.Equal(t, c.bits, uint32(c.word))
		require.Equal(t, c.kind, c.word.Kind())
		require.Equal(t, c.value, c.word.Value())
		require.Equal(t, c.text, c.word.String())
	}
}

// Every accepted Hello is again the same, as far as it is sent.
func FuzzParseHello(f *testing.F) {
	f.Add(Hello{Credits: 384, Table: Region{1, 2, 2}, Buffer: Region{3, 4, 5}}.Marshal())
	f.Add(Hello{BigEndian: true, Credits: 1, IOMap: 300, Table: Region{1, 2, 3}}.Marshal())
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := ParseHello(data)
		if err != nil {
			require.True(t, isEither(err, syscall.EPROTO, syscall.ENOTSUP), "%v", err)
			return
		}
		again, err := ParseHello(h.Marshal())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}
