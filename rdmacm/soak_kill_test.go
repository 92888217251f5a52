package rdmacm_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/rdmacm"
)

// dialPrefix before an address in victimEnv makes the victim the client.
const dialPrefix = "dial "

// dialVictim exchanges messages until it is killed.
func dialVictim(ctx context.Context, address string) error {
	var mr *ibverbs.MR
	conn, err := rdmacm.Dial(ctx, address, &rdmacm.Config{
		PrivateData: order{Do: expectAny}.bytes(),
		Setup: func(c *rdmacm.Conn) (err error) {
			mr, err = c.Alloc(2*maxMessage, ibverbs.AccessLocalWrite)
			return err
		},
	})
	if err != nil {
		return err
	}
	fmt.Println("connected")
	for {
		pending, err := conn.PostRecv(mr.Sub(maxMessage, maxMessage))
		if err != nil {
			return err
		}
		if err := conn.Send(ctx, mr.Sub(0, maxMessage)); err != nil {
			return err
		}
		if _, err := pending.Wait(ctx); err != nil {
			return err
		}
	}
}

// startVictim runs this program as a victim, and returns its output.
func startVictim(value string) (*exec.Cmd, *bufio.Scanner, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), victimEnv+"="+value)
	cmd.Stderr = io.Discard // what it says when its peer goes first
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	return cmd, bufio.NewScanner(stdout), cmd.Start()
}

// kill ends a victim, at a random time after it got going.
func (w *worker) kill(cmd *exec.Cmd) error {
	time.Sleep(time.Duration(w.IntN(20000)) * time.Microsecond)
	err := cmd.Process.Kill()
	_ = cmd.Wait() // says that it was killed
	return err
}

// killServer connects to another process, which is killed.
func (s *soak) killServer(w *worker) error {
	cmd, lines, err := startVictim(s.host + ":0")
	if err != nil {
		return err
	}
	if !lines.Scan() {
		return errors.Join(errors.New("the victim does not listen"), lines.Err(), w.kill(cmd))
	}
	conn, err := rdmacm.Dial(w.ctx, lines.Text(), nil)
	if err != nil {
		return errors.Join(err, w.kill(cmd))
	}
	if err := conn.Send(w.ctx); err != nil {
		return errors.Join(err, w.kill(cmd), conn.Close())
	}
	err = w.kill(cmd)
	select {
	case <-conn.Done():
	case <-w.ctx.Done():
		err = errors.Join(err, fmt.Errorf("the connection did not end: %w", context.Cause(w.ctx)))
	}
	return errors.Join(err, conn.Close())
}

// killClient kills another process that has connected to the server.
func (s *soak) killClient(w *worker) error {
	cmd, lines, err := startVictim(dialPrefix + s.address)
	if err != nil {
		return err
	}
	if !lines.Scan() {
		return errors.Join(errors.New("the victim does not connect"), lines.Err(), w.kill(cmd))
	}
	return w.kill(cmd)
}
