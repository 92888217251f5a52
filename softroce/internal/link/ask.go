// SPDX-License-Identifier: Apache-2.0

//go:build linux

package link

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strings"

	"github.com/verbena-go/verbena/internal/inquiry"
)

// Publish makes this process answer calls of Ask by processes of the same user,
// until the result is closed. The function answer returns the answer. The
// process need not be a node.
func Publish(answer func() []byte) (io.Closer, error) {
	listener, err := net.Listen("unix", fmt.Sprintf("%sstat/%016x", Prefix(), rand.Uint64()))
	if err != nil {
		return nil, err
	}
	go answerAll(listener, answer)
	return listener, nil
}

// answerAll answers the processes that call Ask. Programs pass the name of this
// function to goleak, so it must not change (see docs/softroce.md).
func answerAll(listener net.Listener, answer func() []byte) {
	inquiry.Serve(context.Background(), listener, answer)
}

// published reports whether a name is one that Publish gives to sockets, in
// this or any other network.
func published(name string) bool {
	rest, ok := strings.CutPrefix(name, "@verbena-softroce")
	if !ok {
		return false
	}
	network, number, ok := strings.Cut(rest, "/stat/")
	if network != "" && !(network[0] == '-' && inquiry.IsNumber(network[1:])) {
		return false
	}
	return ok && inquiry.IsNumber(number)
}

// Ask asks all processes of this user and network namespace. If NetworkVariable
// is set, it asks only those of the same network. See inquiry.Ask.
func Ask(ctx context.Context) ([]inquiry.Answer, error) {
	all := os.Getenv(NetworkVariable) == ""
	return inquiry.Ask(ctx, func(name string) bool { return published(name) && (all || strings.HasPrefix(name, Prefix())) })
}
