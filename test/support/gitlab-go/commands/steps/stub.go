package steps

const SubCommandName = "steps"
