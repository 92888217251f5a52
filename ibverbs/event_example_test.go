package ibverbs_test

import (
	"context"
	"errors"
	"log"
	"os"

	"github.com/verbena-go/verbena/ibverbs"
)

// A program that uses queue pairs on a device lets a goroutine read the
// device's events.
func ExampleDevice_Events() {
	c, err := ibverbs.Open("")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for ev, err := range c.Events(context.Background()) {
			switch {
			case errors.Is(err, os.ErrClosed): // by Close below
			case err != nil:
				log.Print(err)
			case ev.Type == ibverbs.EventPortError:
				log.Printf("port %d of %s is down", ev.Port(), c.Name())
			case ev.Type.Fatal() && ev.QP() != nil:
				log.Print(ev) // such as: QP 17 of mlx5_0: local access violation work queue error
				_ = ev.QP().SetError()
			}
		}
	}()

	// ... queue pairs and their work ...

	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
}
