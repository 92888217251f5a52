package rdmacm

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/verbena-go/verbena/ibverbs"
	"github.com/verbena-go/verbena/internal/cerr"
)

// note keeps that an event was read.
func (id *ID) note(t EventType) { id.seen.Or(1 << t) }

// saw reports whether an event of one of these types was read.
func (id *ID) saw(types ...EventType) bool {
	return id != nil && slices.ContainsFunc(types, func(t EventType) bool { return id.seen.Load()&(1<<t) != 0 })
}

// wasUp reports whether the id has had a connection, isOver whether that has
// ended.
func (id *ID) wasUp() bool { return id.saw(EventEstablished, EventConnectResponse) }

func (id *ID) isOver() bool {
	return id.saw(EventDisconnected, EventRejected, EventTimewaitExit, EventDeviceRemoval)
}

// errExists says that the id has what was to be made.
func errExists(op, object, what string) error {
	return cerr.Refuse(op, object, "the id has a %s already", what)
}

// errStep says that a call came too early. C would follow a null pointer.
func errStep(op, object, missing string) error {
	return cerr.Refuse(op, object, "%s first", missing)
}

// explain adds to C's refusal of a call the step that has to come first, if that
// was not done.
func explain(err error, done bool, missing string) error {
	if e, ok := err.(*ibverbs.Error); ok && !done && e.Errno == syscall.EINVAL {
		return fmt.Errorf("%w: %s first", err, missing)
	}
	return err
}
