// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/testutil/process"
	"github.com/verbena-go/verbena/internal/testutil/testdevice"
	"github.com/verbena-go/verbena/rdmacm"
)

// talkConfig lets waits spin for longer than a slow machine needs for a message
// there and back.
var talkConfig = &rdmacm.Config{SendQueue: 2, RecvQueue: 2, MessageSize: messageLen, MaxInline: messageLen, Spin: ibverbs.MaxSpin}

const (
	talkRounds   = 100  // most rounds of a talk
	talkMessages = 1000 // messages there and back of a round
)

// Two processes that answer each other's messages at once find them by
// spinning: hardly any thread sleeps, which would have to be woken for the next
// message. A round may meet a machine that does other work.
func TestConnSpinsBetweenProcesses(t *testing.T) {
	d := testdevice.Require(t)
	if !testdevice.Soft() {
		t.Skip("counts how often threads of the device in user space sleep")
	}
	start := func(program string, args ...string) *process.Process {
		cmd := process.Command(t, program, args...)
		cmd.Env = append(cmd.Env, "GOMAXPROCS=2")
		return process.Start(t, cmd)
	}
	const most = 0.5 // sleeps for each message there and back
	server := start("answers", d.IPv4.String())
	client := start("talks", server.Line(), fmt.Sprint(most))
	require.Zero(t, client.Wait())
	require.Zero(t, server.Wait())
	least, err := strconv.ParseFloat(client.Line(), 64)
	require.NoError(t, err)
	require.LessOrEqual(t, least, most, "sleeps of the client's threads for each message there and back")
}

// answers is a program that prints where it listens, on the address that is its
// argument, and answers the messages of one connection.
func answers(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := answer(ctx, args[0], stdout); err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func answer(ctx context.Context, host string, stdout io.Writer) error {
	listener, err := rdmacm.Listen(ctx, net.JoinHostPort(host, "0"), nil)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Fprintln(stdout, listener.Addr())
	request, err := listener.Accept(ctx)
	if err != nil {
		return err
	}
	conn, err := request.Accept(ctx, talkConfig)
	if err != nil {
		return err
	}
	defer conn.Close()
	for m, err := range conn.Messages(ctx) {
		if err != nil {
			return err
		}
		if err := conn.Send(ctx, ibverbs.InlineBytes(m.Data)); err != nil {
			return err
		}
	}
	return nil
}

// talks is a program that connects to the address that is its first argument,
// and talks in rounds, until its threads sleep at most as often for each
// message as the second argument says. It prints the least that it has found.
func talks(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	most, err := strconv.ParseFloat(args[1], 64)
	if err == nil {
		err = talk(ctx, args[0], most, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func talk(ctx context.Context, address string, most float64, stdout io.Writer) error {
	conn, err := rdmacm.Dial(ctx, address, talkConfig)
	if err != nil {
		return err
	}
	defer conn.Close()
	least := math.Inf(1)
	for range talkRounds {
		before := sleeps()
		for range talkMessages {
			if err := conn.Send(ctx, ibverbs.InlineBytes(message)); err != nil {
				return err
			}
			m, err := conn.Receive(ctx)
			if err != nil {
				return err
			}
			if !bytes.Equal(m.Data, message) {
				return errAnswer
			}
		}
		if least = min(least, float64(sleeps()-before)/talkMessages); least <= most {
			break
		}
	}
	fmt.Fprintln(stdout, least)
	return nil
}

// sleeps returns how often threads of this process have slept.
func sleeps() int64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return used.Nvcsw
}
