#!/bin/sh
echo 'This stand-in of the agent needs nothing but node.'
