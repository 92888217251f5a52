// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"bufio"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// These servers speak as much of their protocols as the clients need to connect
// and to run one statement, and call query for each.

// serveRedis knows PING alone.
func serveRedis(conn net.Conn, query func()) {
	r := bufio.NewReader(conn)
	number := func(prefix string) (int, error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimPrefix(strings.TrimSpace(line), prefix))
	}
	for {
		words, err := number("*")
		if err != nil {
			return
		}
		var command []string
		for range words {
			n, err := number("$")
			if err != nil {
				return
			}
			word := make([]byte, n+len("\r\n"))
			if _, err := io.ReadFull(r, word); err != nil {
				return
			}
			command = append(command, strings.ToLower(string(word[:n])))
		}
		answer := "-ERR unknown command\r\n"
		if slices.Equal(command, []string{"ping"}) {
			query()
			answer = "+PONG\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// serveMySQL lets every user in and answers every statement with OK.
func serveMySQL(conn net.Conn, query func()) {
	r := bufio.NewReader(conn)
	read := func() (sequence byte, payload []byte, err error) {
		var header [4]byte
		if _, err := io.ReadFull(r, header[:]); err != nil {
			return 0, nil, err
		}
		payload = make([]byte, int(header[0])|int(header[1])<<8|int(header[2])<<16)
		_, err = io.ReadFull(r, payload)
		return header[3], payload, err
	}
	write := func(sequence byte, payload string) error {
		packet := binary.LittleEndian.AppendUint32(nil, uint32(len(payload))|uint32(sequence)<<24)
		_, err := conn.Write(append(packet, payload...))
		return err
	}
	const (
		capabilities = 0x1 | 0x200 | 0x8000 | 0x80000 // long password, protocol 4.1, secure connection, plugins
		quit         = 1
		ok           = "\x00\x00\x00\x02\x00\x00\x00"
	)
	hello := "\x0a8.0.0\x00" + "\x01\x00\x00\x00" + "12345678\x00" +
		string([]byte{capabilities & 0xff, capabilities >> 8 & 0xff}) + "\x2d\x02\x00" + string([]byte{capabilities >> 16, 0}) +
		"\x15" + strings.Repeat("\x00", 10) + "123456789012\x00" + "mysql_native_password\x00"
	if write(0, hello) != nil {
		return
	}
	sequence, _, err := read()
	if err != nil || write(sequence+1, ok) != nil {
		return
	}
	for {
		sequence, command, err := read()
		if err != nil || len(command) == 0 || command[0] == quit {
			return
		}
		query()
		if write(sequence+1, ok) != nil {
			return
		}
	}
}

// servePostgres lets every user in and answers every statement with DO.
func servePostgres(conn net.Conn, query func()) {
	b := pgproto3.NewBackend(conn, conn)
	if _, err := b.ReceiveStartupMessage(); err != nil {
		return
	}
	b.Send(&pgproto3.AuthenticationOk{})
	for name, value := range map[string]string{"client_encoding": "UTF8", "standard_conforming_strings": "on"} {
		b.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
	}
	b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte{1, 2, 3, 4}})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if b.Flush() != nil {
		return
	}
	for {
		message, err := b.Receive()
		if err != nil {
			return
		}
		statement, ok := message.(*pgproto3.Query)
		if !ok {
			return
		}
		if strings.HasPrefix(statement.String, "--") || statement.String == ";" { // a ping
			b.Send(&pgproto3.EmptyQueryResponse{})
		} else {
			query()
			b.Send(&pgproto3.CommandComplete{CommandTag: []byte("DO")})
		}
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		if b.Flush() != nil {
			return
		}
	}
}
