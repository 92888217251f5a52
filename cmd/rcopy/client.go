// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/verbena-go/verbena/cmd/internal/program"
)

// parseTarget returns the two parts of a target of the form
// server[:destination]. An IPv6 address before a destination must be in
// brackets.
func parseTarget(target string) (server, destination string) {
	if _, err := netip.ParseAddr(target); err == nil {
		return target, ""
	}
	if rest, ok := strings.CutPrefix(target, "["); ok {
		if server, destination, ok = strings.Cut(rest, "]"); ok {
			return server, strings.TrimPrefix(destination, ":")
		}
	}
	server, destination, _ = strings.Cut(target, ":")
	return server, destination
}

// send sends the file to the server.
func (o *options) send(ctx context.Context, out program.Output, server, destination string) (err error) {
	if len(destination) > maxPath {
		return program.Misuse("destination of %d bytes: at most %d fit into a message", len(destination), maxPath)
	}
	file, err := os.Open(o.source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", o.source)
	}
	conn, err := o.dial(ctx, server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	took, err := transfer(out, conn, file, info, destination)
	if err != nil {
		out.Printf("\n")
		return err
	}
	fmt.Fprintf(out.Stdout, "%d bytes in %.2f seconds = %.2f Gb/sec\n",
		info.Size(), took.Seconds(), float64(info.Size())*8/(1000*float64(took.Nanoseconds())/1000))
	return nil
}

// transfer makes the server store a file, and prints each step. It returns how
// long the transfer of the data took.
func transfer(out program.Output, conn io.ReadWriter, file io.Reader, info os.FileInfo, destination string) (time.Duration, error) {
	out.Printf("opening...")
	const regular = 0o100000 // in C's modes
	mode := regular | uint32(info.Mode().Perm())
	if err := ask(conn, header{command: open, data: mode}, openBody(destination)); err != nil {
		return 0, err
	}
	out.Printf("transferring...")
	start := time.Now()
	if info.Size() > 0 { // C's server refuses an empty WRITE, and OPEN has emptied the file already
		if err := writeFile(conn, file, info.Size()); err != nil {
			return 0, err
		}
	}
	took := time.Since(start)
	out.Printf("closing...")
	if err := ask(conn, header{command: closing}, nil); err != nil {
		return 0, err
	}
	out.Printf("done\n")
	return took, nil
}

// ask sends a message and waits for the answer.
func ask(conn io.ReadWriter, h header, body []byte) error {
	if _, err := conn.Write(h.marshal(body)); err != nil {
		return fmt.Errorf("%v: %w", h.command, err)
	}
	return readAnswer(conn, h.command)
}

// writeFile sends a WRITE message and the file's data.
func writeFile(conn io.ReadWriter, file io.Reader, size int64) error {
	if _, err := conn.Write(header{command: write}.marshal(writeBody(size))); err != nil {
		return fmt.Errorf("%v: %w", write, err)
	}
	n, err := io.CopyN(conn, file, size)
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("the file has ended after %d bytes of %d", n, size)
	}
	if err != nil {
		// The server may have sent the reason why it reads no more
		// data.
		if answer := readAnswer(conn, write); answer != nil && !errors.Is(answer, io.ErrUnexpectedEOF) {
			err = errors.Join(err, answer)
		}
		return fmt.Errorf("send the file: failed after %d bytes of %d: %w", n, size, err)
	}
	return readAnswer(conn, write)
}
