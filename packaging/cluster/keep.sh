# Sourced by control.sh and node.sh.

# Runs a program again each time that it ends, as systemd does on a real node; a program that ends within 5 s is broken.
#   keep LOG PROGRAM ARGUMENT...
keep() {
    local log=$1 began
    shift
    while true; do
        began=$SECONDS
        "$@" >>"$log" 2>&1 || true
        [ $((SECONDS - began)) -ge 5 ] || exit 1
        sleep 1
    done
}
