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
// spinning, also while other goroutines of theirs wait for messages that do not
// come: hardly any thread sleeps, which would have to be woken for the next
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
	const most = 0.5 // sleeps for each message there and back, or one way
	for _, tt := range []struct {
		idle int
		way  string
	}{{0, thereAndBack}, {3, thereAndBack}, {0, oneWay}} {
		t.Run(fmt.Sprint(tt.idle, " idle, ", tt.way), func(t *testing.T) {
			server := start("answers", d.IPv4.String(), fmt.Sprint(tt.idle), tt.way)
			client := start("talks", server.Line(), fmt.Sprint(tt.idle), fmt.Sprint(most), tt.way)
			require.Zero(t, client.Wait())
			require.Zero(t, server.Wait())
			least, err := strconv.ParseFloat(client.Line(), 64)
			require.NoError(t, err)
			require.LessOrEqual(t, least, most, "sleeps of the client's threads for each message")
		})
	}
}

// The ways of messages between the programs answers and talks. One way, another
// goroutine of the sender waits for messages meanwhile, which do not come.
const (
	thereAndBack = "there and back"
	oneWay       = "one way, beside a receiver"
)

// answers is a program that prints where it listens, on the address that is its
// first argument, and answers the messages of connections: as many as the
// second argument says, and of the last one until it ends. If the third
// argument is oneWay, it answers nothing on the last one.
func answers(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	idle, err := strconv.Atoi(args[1])
	if err == nil {
		err = answer(ctx, args[0], idle, args[2] == thereAndBack, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func answer(ctx context.Context, host string, idle int, answers bool, stdout io.Writer) error {
	listener, err := rdmacm.Listen(ctx, net.JoinHostPort(host, "0"), nil)
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Fprintln(stdout, listener.Addr())
	accept := func() (*rdmacm.Conn, error) {
		request, err := listener.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return request.Accept(ctx, talkConfig)
	}
	for range idle {
		conn, err := accept()
		if err != nil {
			return err
		}
		answering := make(chan error, 1)
		go func() { answering <- answerOn(ctx, conn, true) }()
		defer func() { conn.Close(); <-answering }()
	}
	conn, err := accept()
	if err != nil {
		return err
	}
	defer conn.Close()
	return answerOn(ctx, conn, answers)
}

// answerOn receives the messages of a connection, and sends them back if
// answers is set.
func answerOn(ctx context.Context, conn *rdmacm.Conn, answers bool) error {
	for m, err := range conn.Messages(ctx) {
		if err != nil {
			return err
		}
		if !answers {
			continue
		}
		if err := conn.Send(ctx, ibverbs.InlineBytes(m.Data)); err != nil {
			return err
		}
	}
	return nil
}

// talks is a program that connects to the address that is its first argument,
// after the idle connections of the second, and talks in rounds, until its
// threads sleep at most as often for each message as the third argument says.
// The fourth argument is the messages' way.
// It prints the least that it has found.
func talks(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	idle, err := strconv.Atoi(args[1])
	var most float64
	if err == nil {
		most, err = strconv.ParseFloat(args[2], 64)
	}
	if err == nil {
		err = talk(ctx, args[0], idle, most, args[3], stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

func talk(ctx context.Context, address string, idle int, most float64, way string, stdout io.Writer) error {
	for range idle {
		conn, err := rdmacm.Dial(ctx, address, talkConfig)
		if err != nil {
			return err
		}
		for range 10 {
			if err := ask(ctx, conn); err != nil {
				return err
			}
		}
		defer receive(ctx, conn)()
	}
	conn, err := rdmacm.Dial(ctx, address, talkConfig)
	if err != nil {
		return err
	}
	defer conn.Close()
	talk := ask
	if way == oneWay {
		defer receive(ctx, conn)()
		talk = tell
	}
	least := math.Inf(1)
	for range talkRounds {
		before := sleeps()
		for range talkMessages {
			if err := talk(ctx, conn); err != nil {
				return err
			}
		}
		if least = min(least, float64(sleeps()-before)/talkMessages); least <= most {
			break
		}
	}
	fmt.Fprintln(stdout, least)
	return nil
}

// receive waits for a message in another goroutine until end is called, which
// closes the connection.
func receive(ctx context.Context, conn *rdmacm.Conn) (end func()) {
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, _ = conn.Receive(ctx)
	}()
	return func() { conn.Close(); <-waiting }
}

// tell sends a message.
func tell(ctx context.Context, conn *rdmacm.Conn) error {
	return conn.Send(ctx, ibverbs.InlineBytes(message))
}

// ask sends a message and waits for the answer.
func ask(ctx context.Context, conn *rdmacm.Conn) error {
	if err := tell(ctx, conn); err != nil {
		return err
	}
	m, err := conn.Receive(ctx)
	if err == nil && !bytes.Equal(m.Data, message) {
		err = errAnswer
	}
	return err
}

// sleeps returns how often threads of this process have slept.
func sleeps() int64 {
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	return used.Nvcsw
}
